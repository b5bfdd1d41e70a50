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
    "quarantined_count",
    "quarantined",
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
        return with_offsets({name: self.values.get(name) for name in RETURNED})

    def failure(self) -> StateflowTaskFailed:
        """The error that ended a run which did not finish."""
        error = self.values.get("error") or {}
        return failure(
            error.get("code", "internal"),
            error.get("message", "the run failed and did not say why"),
            error.get("hint", ""),
            retryable=bool(error.get("retryable", True)),
        )


def with_offsets(returned: dict[str, Any]) -> dict[str, Any]:
    """What a task returns, with its sources' positions as values instead of JSON in texts; None for a source that had
    nothing yet."""
    offsets = returned.get("offsets") or {}
    return {**returned, "offsets": {uid: _position(text) for uid, text in offsets.items()}}


def _position(text: Any) -> Any:
    if text == "-":
        return None
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        # A source's own notation.
        return text


def read_result(path: Path) -> RunResult | None:
    """The result in `path`; None when the run ended, or was ended, before it could write one."""
    try:
        return RunResult(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
