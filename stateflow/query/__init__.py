"""Checkpoints and savepoints that are opened outside of a run, and their state.

- `snapshot`: opens a checkpoint or savepoint; `metadata`: its metadata as tables
- `state`: the entries of a state, as Python objects
- `reader`, `state_table`, `value_types`: state as Arrow record batches; `data_source`: as DataFrames of Spark
"""

from stateflow.query.snapshot import Snapshot, open_snapshot
from stateflow.query.state import StateEntry, state_entries

__all__ = ["Snapshot", "StateEntry", "open_snapshot", "state_entries"]
