"""Aggregates over the rows of a key before each row.

- `frames`: frames, and the aggregates of the rows in them.
- `over_aggregates`: the function of `KeyedStream.over_columns`.
"""
