"""The command that compares the state of two snapshots."""
