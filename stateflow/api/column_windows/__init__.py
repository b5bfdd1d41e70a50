"""Windows whose rows are aggregated by columns: assignment, merging and evaluation for many keys at once."""
