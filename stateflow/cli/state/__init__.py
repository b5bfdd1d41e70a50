"""Commands about the state in checkpoints and savepoints."""
