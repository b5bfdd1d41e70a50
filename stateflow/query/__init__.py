"""Reading of stored state outside of a run."""

from stateflow.query.snapshot import Snapshot, open_snapshot
from stateflow.query.state import StateEntry, read_state

__all__ = ["Snapshot", "StateEntry", "open_snapshot", "read_state"]
