"""Column aggregates, their accumulators and their partial aggregation."""
