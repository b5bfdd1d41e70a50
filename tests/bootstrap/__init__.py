"""Tests of savepoints that are written without a run."""
