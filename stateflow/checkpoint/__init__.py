"""Log, manifests, savepoints and restores of a job root. Imports neither Spark nor RocksDB."""
