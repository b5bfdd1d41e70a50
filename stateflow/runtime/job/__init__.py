"""A job that is ready to start: loaded, bound to its root and sinks, and checked."""
