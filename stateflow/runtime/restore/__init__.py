"""Restore: plan, execution, rewind of tables, and creation of a job root from a savepoint."""
