"""RocksDB's data files (``.sst``): the check of their structure, and what is read from them in Python."""
