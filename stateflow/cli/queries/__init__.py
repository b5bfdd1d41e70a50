"""Commands for queries of a job's state."""
