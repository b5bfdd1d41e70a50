"""Airflow operators.

- `run`: runs a job; `savepoint`: takes savepoints and stops a job
- `restore_plan`, `recovery`: plan and execute restores and forks
- `retention`, `retention_limits`: delete old savepoints and files, maintain tables
- `partitions`: asset events of closed days and hours
- `export`: exports state; `bootstrap`: writes savepoints from files; `validation`: compares checkpoints
- `approvals`: ask a user to approve a request
- `base`: parts that operators share; `template_values`: conversion of rendered values
"""
