"""Files of Parquet, JSON, CSV and text in folders, as sources and sinks.

- `sink`: `FileSink`, its handle of a folder, the writers, and the log that decides which files are visible.
- `source`: `FileSource`: whether there are new files, which are skipped, and how many a batch reads. Spark chooses the
  files of a batch; `runtime.spark.checkpoint_location` reads them from Spark's log, and puts them in order.
- `reader_options`: the options of Spark's readers that the source has.
- `text_files`: decodes JSON, CSV and text, and takes columns from names of folders.
- `parquet_files`: reads Parquet files with Arrow.
"""
