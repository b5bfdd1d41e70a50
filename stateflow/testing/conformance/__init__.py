"""Test suites that every storage and every state backend must pass."""
