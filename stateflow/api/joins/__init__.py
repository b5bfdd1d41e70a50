"""The functions that join two streams.

- `functions`: what users implement; `pairs`: pairs of rows of two Arrow batches.
- `regular_join`: joins of streams that only append rows, and conditions.
- `changelog_join`: joins whose results are retracted.
- `interval_join`, `window_join`, `temporal_join`: joins with event time; `times`: what they share.
- `lookup_join`: columns of a table that Spark reads in each batch.
"""
