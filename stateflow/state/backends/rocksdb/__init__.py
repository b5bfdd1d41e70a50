"""Keyed state in RocksDB: its snapshots, rescaling, and the check of stores that come from elsewhere."""
