"""Sources and sinks that are part of stateflow.

- `delta`, `files`, `iceberg`, `kafka`, `postgres`: a folder for each system.
- `batch_table`, `python`, `spark`, `partitioned`: other sources; `foreach_batch`: a sink that calls a function.
- `staged_output`: base of sinks whose tasks stage rows and whose driver publishes them; `upserts`: rows with keys.
- `data_files`, `partitions`, `delta_types`: data files that tasks write into tables and folders.
- `stream_reader`: streams that Spark reads through Python, with the readers of each version of Spark.
- `column_policy`, `store_assignment`: declared columns, and rows as an existing table stores them.
- `json_rows`, `json_values`, `text_values`, `parquet_batches`: values in files and records.
- `partition_offsets`: positions and errors that sources have in common.
"""

from stateflow.connectors.delta.sink import DeltaSink

__all__ = ["DeltaSink"]
