"""Types of keys and values: descriptors, serializers, key groups and TTL configuration.

- `descriptors`, `ttl_config`: the declarations of a function's states.
- `serializers`, `custom_serializer`, `decoders`: values as bytes.
- `declared_types`: descriptions and members of declared types.
- `key_encoding`, `key_groups`, `key_values`: keys as bytes, their key groups, and keys that users give.
- `columns`: declared types as Arrow columns.
- `time_window`, `spark_sql`: intervals of time; names and literals of Spark SQL.
"""
