"""Delta tables as sinks and sources.

- `sink`: `DeltaSink`, its handle of a table (commits, upserts, rewinds), checks of a table, and added columns.
- `source`: `DeltaSource`, and its positions as a stream of Spark.
- `commits`: the files and changes between two positions of a source.
- `rows`: reads the rows of data files in tasks.
- `log`: reads the newest version, appends entries, and opens the files that the log names.
- `versions`: the files of each version, and the log entries of rewinds and upserts.
- `maintenance`: combines small files, and deletes files that no version in use has.
"""
