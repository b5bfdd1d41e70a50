"""Log, manifests, savepoints and restores of a job root. Imports neither Spark nor RocksDB.

- `log`: the append-only log that commits checkpoints, the documents that it refers to, and the job root.
- `savepoints`: creation, lookup, claims and deletion of savepoints.
- `restore`: targets and plans of restores, and the assignment of state.
- `barriers`: reports of tasks, completion of barriers, and coordination of checkpoints.
- `sink_commit`: publishes a checkpoint's output in a sink's table exactly once.
- `history`: records of checkpoints, commands and failures.
- `progress`: how far a long batch or a restore is.
- `job_requests`: requests to a job's run, such as savepoints.
- `garbage_collector`: deletes what no checkpoint needs.
"""
