"""Calls of an operator's function: for rows, for due timers, and at its begin and end."""
