"""The log of a Delta table."""
