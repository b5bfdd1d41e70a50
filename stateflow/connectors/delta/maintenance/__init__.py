"""Maintenance of Delta tables: small files are combined, and files that no version in use has are deleted."""
