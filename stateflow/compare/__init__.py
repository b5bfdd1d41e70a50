"""Comparison of the state of two checkpoints or savepoints, of one job or of two.

- `snapshots`: `stateflow.diff`, the comparison of two snapshots
- `operators`: the comparison of one operator; `shared_files`: of RocksDB stores that share files
- `states`: the states of an operator, and the equality of values; `merge`: two sorted streams of entries as one
- `changes`: the entries that differ, as rows; `summary`: their counts
"""
