"""The harness that runs keyed functions in tests."""
