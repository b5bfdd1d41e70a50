"""The state of a snapshot as Arrow record batches."""
