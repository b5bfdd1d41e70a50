"""A subtask: its input, its operator and state, and its outputs."""
