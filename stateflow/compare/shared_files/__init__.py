"""Compares two RocksDB stores that share files, by the files that only one of them has.

The visible value of a key can only differ between two stores if the key occurs, as an entry or as a deletion, in a
file that only one of them has. So these files are read, and their keys are looked up in the files that both have.
"""
