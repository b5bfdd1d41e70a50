"""The provider metadata for ``airflow providers list`` and Airflow's configuration reference."""

from __future__ import annotations

_OPTIONS: dict[str, dict[str, object]] = {
    "run_folder": {
        "description": (
            "Folder for logs, results and process records of launched jobs. Default: `stateflow-runs` in AIRFLOW_HOME."
        ),
        "version_added": "0.1.0",
        "type": "string",
        "example": "/var/lib/stateflow/runs",
        "default": None,
    },
    "passed_environment": {
        "description": (
            "Names and patterns, separated by spaces or commas, of environment variables of the worker "
            "that drivers get, in addition to those that Java, Python, Spark and storage clients use."
        ),
        "version_added": "0.1.0",
        "type": "string",
        "example": "VAULT_ADDR, MY_JOB_*",
        "default": None,
    },
    "allowed_locations": {
        "description": (
            "Paths and URIs outside of job roots, separated by spaces, below which savepoints and "
            "forks of any job may be. A job may name further ones in its DAG file."
        ),
        "version_added": "0.1.0",
        "type": "string",
        "example": "s3://backup/savepoints file:///mnt/savepoints",
        "default": None,
    },
    "pages_locations": {
        "description": (
            "Paths and URIs, separated by spaces, below which the API server reads job roots to show them. "
            "Default: each job root that a DAG file names."
        ),
        "version_added": "0.1.0",
        "type": "string",
        "example": "s3://jobs/flights /data/jobs",
        "default": None,
    },
}
"""Airflow's settings in the section ``[stateflow]``."""


def get_provider_info() -> dict[str, object]:
    """Returns the metadata, in the format of Airflow's `provider_info.schema.json`."""
    return {
        "package-name": "stateflow",
        "name": "stateflow",
        "description": "Checkpoints, recovery and keyed state for PySpark jobs.",
        "integrations": [{"integration-name": "stateflow", "external-doc-url": "", "tags": ["software"]}],
        "operators": [
            {
                "integration-name": "stateflow",
                "python-modules": [
                    "stateflow_airflow.operators.run",
                    "stateflow_airflow.operators.savepoint",
                    "stateflow_airflow.operators.approvals.approval",
                    "stateflow_airflow.operators.approvals.command_approval",
                    "stateflow_airflow.operators.partitions",
                    "stateflow_airflow.operators.recovery",
                    "stateflow_airflow.operators.retention",
                    "stateflow_airflow.operators.bootstrap.write",
                    "stateflow_airflow.operators.export",
                    "stateflow_airflow.operators.validation.diff",
                    "stateflow_airflow.services.serve",
                ],
            }
        ],
        "sensors": [{"integration-name": "stateflow", "python-modules": ["stateflow_airflow.sensors"]}],
        "triggers": [
            {
                "integration-name": "stateflow",
                "python-modules": ["stateflow_airflow.sensors.sensors", "stateflow_airflow.launch_trigger"],
            }
        ],
        "hooks": [{"integration-name": "stateflow", "python-modules": ["stateflow_airflow.hooks"]}],
        "config": {"stateflow": {"description": "Options of stateflow's operators.", "options": _OPTIONS}},
    }
