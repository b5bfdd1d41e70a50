"""Files of Parquet, JSON, CSV and text in folders, as sources and sinks.

- `sink`: `FileSink`, its handle of a folder, the writers, and the log that decides which files are visible.
- `source`: `FileSource`: whether there are new files, which are skipped, how many a batch reads, and the options. Spark
  chooses the files of a batch; `runtime.spark.checkpoint_location` reads them from Spark's log, and puts them in order.
- `text_files`: decodes JSON, CSV and text, and takes columns from names of folders.
- `parquet_files`: reads Parquet files with Arrow.
"""
