"""The command line. It prints what `stateflow.operations` returns.

- `main`: the group of all commands; `common`: options, output, and errors with their exit codes
- `run`: run and submit; `check`: plan and check
- `status`: status and history; `checkpoints`: the checkpoints of a job
- `savepoints`: savepoint and stop; `restore`: restore and fork
- `state`: the entries of a checkpoint; `compare`: diff; `replay`: replay
- `queries`: query and serve
- `maintenance`: doctor, verify, gc, can-delete, pins, tables and source
"""
