"""The rows of frames, encoded as stored entries."""
