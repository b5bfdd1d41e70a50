"""The kinds of state, on top of a backend.

- `keyed_state`: the keyed states of one operator's subtask; `keyed_state_batch`: many keys at once.
- `single_value`, `list_state`, `maps`: value, reducing, aggregating, list and map state.
- `timers`, `timer_index`, `window_timers`: timers, their earliest times, and timers of windows as columns.
- `operator_state`, `raw_state`: state of a subtask rather than of a key.
- `ttl`: expiry of entries and their removal.
- `state_registry`: the declared states, checked against the checkpoint.
- `key_context`: the current key and the pending changes, which all states share.
"""
