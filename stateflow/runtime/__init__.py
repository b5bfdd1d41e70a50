"""Doing: the driver's side and the tasks' side of a run."""
