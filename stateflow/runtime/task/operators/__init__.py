"""Operators of a task: they call user functions with rows, timers and state."""
