"""The rows of a batch, read from the sources once more."""
