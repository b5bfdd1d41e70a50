"""Checkpoints of Spark's Structured Streaming: the positions and the state that a savepoint takes from them."""
