"""The API of job files: streams, functions, sources and sinks. Importing it has no side effects."""
