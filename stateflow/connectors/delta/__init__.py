"""Delta tables as sinks and sources.

- `sink`: `DeltaSink`, its handle of a table (commits, upserts, rewinds), checks of a table, and added columns.
- `source`: `DeltaSource`, which reads through Delta's own source for Spark.
- `log`: reads the newest version, appends entries, and opens the files that the log names.
- `versions`: the files of each version, and the log entries of rewinds and upserts.
- `maintenance`: combines small files, and deletes files that no version in use has.
"""
