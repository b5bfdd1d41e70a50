"""The streams that join methods return.

- `regular_joined`: `KeyedStream.join`; `interval_joined`: `interval_join`.
- `joined_streams`: `DataStream.join` and `co_group`, in windows.
- `temporal_joined`: `temporal_join`, with the version of a row at a time.
- `inputs`: checks of the inputs, and the columns of results.
"""
