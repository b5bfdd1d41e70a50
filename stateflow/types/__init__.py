"""Types of keys and values: descriptors, serializers, key groups and TTL configuration.

- `descriptors`, `ttl_config`: the declarations of a function's states.
- `serializers`, `custom_serializer`, `decoders`: values as bytes.
- `declared_types`: the table of scalar types, descriptions and members of declared types, names in Spark SQL.
- `key_encoding`, `key_groups`, `key_values`: keys as bytes, their key groups, and keys that users give.
- `columns`: declared types as Arrow columns.
- `time_window`: intervals of time.
"""
