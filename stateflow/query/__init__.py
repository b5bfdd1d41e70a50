"""Checkpoints and savepoints that are opened outside of a run, and their state: entries, Arrow tables, DataFrames."""

from stateflow.query.snapshot import Snapshot, open_snapshot
from stateflow.query.state import StateEntry, state_entries

__all__ = ["Snapshot", "StateEntry", "open_snapshot", "state_entries"]
