"""What a run said about its end, in the file that it writes last."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateflow_airflow.failures import StateflowTaskFailed, failure

RETURNED = (
    "checkpoint_id",
    "offsets",
    "rows_in",
    "rows_out",
    "batches",
    "started_from",
    "started_at",
    "generation",
    "stopped_because",
)
"""The part of a result that tasks downstream get as XCom."""


@dataclass(frozen=True)
class RunResult:
    """The result file of one run."""

    values: dict[str, Any]

    @property
    def finished(self) -> bool:
        """Whether the run did all that it was asked for."""
        return bool(self.values.get("status") == "finished")

    def returned(self) -> dict[str, Any]:
        """What the task returns to Airflow."""
        return {name: self.values.get(name) for name in RETURNED}

    def failure(self) -> StateflowTaskFailed:
        """The error that ended a run which did not finish."""
        error = self.values.get("error") or {}
        return failure(
            error.get("code", "internal"),
            error.get("message", "the run failed and did not say why"),
            error.get("hint", ""),
            retryable=bool(error.get("retryable", True)),
        )


def read_result(path: Path) -> RunResult | None:
    """The result in `path`; None when the run ended, or was ended, before it could write one."""
    try:
        return RunResult(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
