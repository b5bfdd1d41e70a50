"""The harness that runs keyed functions in tests.

- `keyed`: `KeyedHarness`
- `job`: its job and rows; `batches`: its batches
- `operator_view`: the state and timers of its operators
"""
