"""The file source: its reader, options and column checks."""
