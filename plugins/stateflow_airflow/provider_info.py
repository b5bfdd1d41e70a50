"""What ``airflow providers list`` and the configuration reference know about this package."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """The provider's description, in the form that Airflow's `provider_info.schema.json` asks for."""
    return {
        "package-name": "stateflow",
        "name": "stateflow",
        "description": "Checkpoints, recovery and keyed state for PySpark jobs.",
        "integrations": [
            {"integration-name": "stateflow", "external-doc-url": "", "tags": ["software"]},
        ],
        "operators": [
            {
                "integration-name": "stateflow",
                "python-modules": [
                    "stateflow_airflow.operators.run",
                    "stateflow_airflow.operators.savepoint",
                    "stateflow_airflow.operators.approval",
                    "stateflow_airflow.operators.recovery",
                    "stateflow_airflow.operators.retention",
                ],
            }
        ],
        "hooks": [{"integration-name": "stateflow", "python-modules": ["stateflow_airflow.hooks"]}],
        "config": {
            "stateflow": {
                "description": "How stateflow's operators launch jobs.",
                "options": {
                    "run_folder": {
                        "description": (
                            "Folder for logs, results and process records of launched jobs; without it, "
                            "`stateflow-runs` in AIRFLOW_HOME."
                        ),
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "/var/lib/stateflow/runs",
                        "default": None,
                    }
                },
            }
        },
    }
