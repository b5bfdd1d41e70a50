"""A source in Python with partitions, which tasks of Spark read in parallel.

- `source`: `PartitionedSource`, the class that users extend.
- `positions`: positions, and the splits between two of them.
- `split_rows`: the items of a split from the user's code, as columns.
- `spark_reader`: reads the source through Spark's Python data source API.
"""
