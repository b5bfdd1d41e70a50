"""The result of a run, from the file that the program writes at its end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateflow_airflow.failures import StateflowTaskFailed, failure


@dataclass(frozen=True)
class RunResultFile:
    """The outcome of one run; `values` is the JSON document in the result file."""

    values: Mapping[str, Any]

    @property
    def finished(self) -> bool:
        """Whether the run completed."""
        return bool(self.values.get("status") == "finished")

    @property
    def lineage(self) -> Mapping[str, object] | None:
        """What the run has read and written, as a `LineageEvent`; None if no lineage is reported."""
        found = self.result.get("lineage")
        return found if isinstance(found, Mapping) else None

    def to_xcom(self) -> dict[str, object]:
        """Returns what the task returns to Airflow: the result, without what the task's own lineage event has."""
        return {**self.result, "lineage": None}

    @property
    def result(self) -> Mapping[str, Any]:
        """What the run has done; empty if it failed."""
        return self.values.get("result") or {}

    def failure(self) -> StateflowTaskFailed:
        """Returns the failure for the error that ended the run."""
        error = self.values.get("error") or {}
        facts = error.get("facts") or {}
        message = error.get("message") or "the run failed without an error message"
        return failure(
            error.get("code", "internal"),
            message + "".join(f" {name}={value!r}" for name, value in facts.items()),
            error.get("hint") or "",
            facts,
            retryable=bool(error.get("retryable", True)),
        )


def read_result(path: Path) -> RunResultFile | None:
    """Returns the result in `path`; None if the program ended before it wrote one."""
    try:
        return RunResultFile(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
