"""The kinds of state, on top of a backend."""
