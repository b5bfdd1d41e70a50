"""stateflow in Airflow: operators that launch jobs and look after their checkpoints.

Nothing below this package imports pyspark, a state store or a table library when it is imported, since the
scheduler imports it for every DAG file; `stateflow` itself is imported only inside a running task.
"""
