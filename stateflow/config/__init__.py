"""Settings: their names, types and defaults, and the sources that they come from."""
