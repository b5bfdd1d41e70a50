"""Savepoints in a job root and outside of one: creation, listing, copies, deletion, retention."""
