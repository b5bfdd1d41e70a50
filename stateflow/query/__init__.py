"""Reading of stored state outside of a run."""

from stateflow.query.state import StateEntry, read_state

__all__ = ["StateEntry", "read_state"]
