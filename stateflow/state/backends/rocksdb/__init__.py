"""Keyed state in RocksDB: its snapshots, rescaling, and the check of stores that come from elsewhere.

- `backend`: the state backend and its reader: opening with a base state, bulk loading, compaction, RocksDB's errors.
- `rescale`: merges the states of several old subtasks into the store of a new one.
- `check`: checks a store of another origin.
- `manifest`: RocksDB's list of data files; `tables`: the data files themselves, read in Python.
"""
