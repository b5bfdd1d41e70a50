"""Replay of the batches of a checkpoint, for debugging: from the state before them, with the rows that they had.

- `replay_batch`: the function for users; `run`: the replay of a job
- `input`: the batches to repeat and their rows; `spark`: the same for jobs on Spark
- `key_trace`: calls for one key, and the debugger
- `state_diff`: how the batches changed the state; `report`: the result
"""
