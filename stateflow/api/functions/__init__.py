"""The functions that users implement, and their contexts.

- `process`, `connected`: functions of one row, with keyed state, and the service of timers.
- `rich`: functions of rows without a key, with `open` and `close`.
- `vectorized`: functions of Arrow batches; `window_vectors`: the same with timers of windows.
- `checkpointed`: functions with operator state.
- `adapters`: map, filter, reduce and aggregate as keyed functions.
- `returned`: errors for the return values of users' functions.
"""
