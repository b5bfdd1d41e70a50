"""The durable truth: the log, manifests, what is garbage, what a restore does. Imports neither Spark nor RocksDB."""
