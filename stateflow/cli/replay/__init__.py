"""The command that replays a batch, and its output."""
