"""The result of a run, from the file that the program writes at its end."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
    "late_rows_dropped",
    "hot_keys",
    "waiting",
    "backlog",
    "idle",
    "duration_s",
)
"""Keys of a result that the task returns as XCom."""


@dataclass(frozen=True)
class RunResultFile:
    """The result of one run; `values` is the JSON document in the result file."""

    values: Mapping[str, Any]

    @property
    def finished(self) -> bool:
        """Whether the run completed."""
        return bool(self.values.get("status") == "finished")

    @property
    def lineage(self) -> Mapping[str, object] | None:
        """What the run has read and written, as a `LineageEvent`; None if no lineage is reported."""
        found = self.values.get("lineage")
        return found if isinstance(found, Mapping) else None

    def to_xcom(self) -> dict[str, object]:
        """Returns what the task returns to Airflow."""
        return with_offsets({name: self.values.get(name) for name in RETURNED})

    def failure(self) -> StateflowTaskFailed:
        """Returns the failure for the error that ended the run."""
        error = self.values.get("error") or {}
        return failure(
            error.get("code", "internal"),
            error.get("message", "the run failed without an error message"),
            error.get("hint", ""),
            error.get("facts"),
            retryable=bool(error.get("retryable", True)),
        )


def with_offsets(returned: Mapping[str, object]) -> dict[str, object]:
    """Returns a task's return value with source positions decoded from JSON; None for a source without a position."""
    offsets = returned.get("offsets")
    positions = {uid: _position(text) for uid, text in offsets.items()} if isinstance(offsets, Mapping) else {}
    return {**returned, "offsets": positions}


def _position(text: object) -> object:
    if text == "-":
        return None
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        # The source's own, non-JSON format.
        return text


def read_result(path: Path) -> RunResultFile | None:
    """Returns the result in `path`; None if the program ended before it wrote one."""
    try:
        return RunResultFile(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
