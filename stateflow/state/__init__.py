"""Managed state: what functions use, the backends below it, and the files that snapshots consist of.

- `kinds`: value, list and map state, timers, TTL, and operator state, on top of a backend.
- `backends`: ordered bytes by key, their snapshots, and rescaling.
- `handles`: references to stored state, which tasks report and manifests contain.
- `schema`: descriptions of stored types; `schema_compatibility`: whether stored values can be read as declared.
- `stored_key`: the layout of the keys of entries, with the position of a list's element.
- `key_columns`, `column_serializer`, `binary_columns`: keys and values of many entries as Arrow columns.
- `rehash`: key groups of stored entries for another max parallelism.
- `operator_content`: reads and decodes stored operator state.
- `host_cache`, `uploads`: state files on a host, and their way to the job root.
"""
