"""The command line. It prints what `stateflow.operations` returns."""
