"""Nexmark's queries as stateflow jobs. Each module has `query`, which returns the stream of the result."""
