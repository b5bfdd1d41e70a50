"""Canonical savepoints: writing them with several workers, and giving state another max parallelism."""
