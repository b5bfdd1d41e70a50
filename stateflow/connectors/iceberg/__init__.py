"""Tables in Apache Iceberg's format as sinks, found by name in a catalog. Only the driver needs PyIceberg.

- `sink`: `IcebergSink`; tasks stage rows in the job root.
- `target`: which table a sink writes, and how the driver connects to the catalog.
- `table`: publishes and rewinds; creates and checks the table, its columns and partitions; writes data files.
- `catalog`: loads tables, commits snapshots, and translates errors.
- `snapshots`: tokens in summaries of snapshots, and the history that a rewind goes back in.
"""
