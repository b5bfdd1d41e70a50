"""The kinds of state, on top of a backend.

- `keyed_state`: the keyed states of one operator's subtask, checked against the checkpoint.
- `keyed_state_batch`: many keys at once.
- `single_value`, `list_state`, `maps`: value, reducing, aggregating, list and map state.
- `timers`, `window_timers`: timers and their earliest times, and timers of windows as columns.
- `operator_state`, `raw_state`: state of a subtask rather than of a key.
- `ttl`: expiry of entries and their removal.
- `key_context`: the current key and the pending changes, which all states share.
"""
