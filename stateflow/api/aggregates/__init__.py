"""Aggregates of columns, such as `sum` and `count`.

- `aggregate`: the base class, and the columns of a batch that it aggregates.
- `builtin`: every aggregate, and its name; HyperLogLog sketches for `approx_distinct`.
- `partial`: the aggregation before the shuffle.
- `column_aggregates`: the function of `KeyedStream.aggregate_columns`.
- `changelog_aggregates`: the same over rows that may be retracted.
"""
