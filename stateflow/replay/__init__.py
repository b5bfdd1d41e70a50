"""Replay of the batches of a checkpoint, for debugging: from the state before them, with the rows that they had."""
