"""A source in Python with partitions, which tasks of Spark read in parallel.

- `source`: `PartitionedSource`, the class that users extend.
- `positions`: positions, and the splits between two of them.
- `split_rows`: what the user's code returns for a split, as columns.
- `spark_reader`: reads the source through Spark's Python data source API.
"""
