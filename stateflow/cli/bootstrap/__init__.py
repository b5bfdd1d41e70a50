"""Commands that write savepoints without a run."""
