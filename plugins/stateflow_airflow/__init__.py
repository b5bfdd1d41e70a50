"""Airflow operators, DAGs and a hook that launch stateflow jobs and manage their checkpoints.

The scheduler imports this package for every DAG file. No module imports pyspark, a state backend or a table library at
its top; tasks import `stateflow` itself while they run.
"""
