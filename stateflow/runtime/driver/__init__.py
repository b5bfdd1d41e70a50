"""The driver of a run: start, batches, checkpoints, requests, end."""
