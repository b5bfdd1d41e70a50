"""Benchmarks: figures as ratios against a peer or a limit in the same run; never tests."""
