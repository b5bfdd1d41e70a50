"""Files of Parquet, JSON, CSV and text in folders, as sources and sinks.

- `sink`: `FileSink`, its handle of a folder, the writers, and the log that decides which files are visible.
- `source`: `FileSource`: whether there are new files, which are skipped, how tasks or Spark read them, and the options;
  `runtime.spark.checkpoint_location` has the files of a batch, in the order in which they are read.
- `text_files`: decodes JSON, CSV and text, and takes columns from names of folders.
- `parquet_files`: reads local Parquet files with Arrow.
"""
