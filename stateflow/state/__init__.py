"""Managed state: what functions use, the backends below it, and the files that snapshots consist of."""
