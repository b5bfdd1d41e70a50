"""State backends: ordered bytes by key, their snapshots, and rescaling.

- `factory`: opens the configured backend, with state written by any backend as its base.
- `base`: the interface of backends, and the limits of entries.
- `hash_maps`: the memory and the filesystem backend.
- `rocksdb`: state larger than memory.
- `canonical_file`: the format of canonical savepoints.
- `entry_stream`: entries as streams and as columns, for all formats.
"""
