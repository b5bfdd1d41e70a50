"""Operators that ask a user to approve a request before a DAG executes it."""
