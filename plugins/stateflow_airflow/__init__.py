"""Airflow operators, DAGs and a hook that launch stateflow jobs and manage their checkpoints.

The scheduler imports this package for every DAG file. No module imports pyspark, a state backend or a table library at
its top; tasks import `stateflow` itself while they run.

- `dags`, `operators`, `sensors`, `services`: what DAG files use; `services.pages` only the API server.
- `hooks`: builds the spark-submit command of a run; `spark`: its options, environment and files.
- `launch`, `launch_trigger`, `renewal`: launches programs, follows them without a worker slot, and replaces them.
- `graceful_end`, `processes`: ends a launch with a checkpoint; finds and signals processes.
- `run_result`, `failures`: the result of a run, and whether a failed task can succeed.
- `deadlines`: assets and deadlines; `plugin`, `provider_info`, `versions`: what Airflow loads, and which Airflow.
"""
