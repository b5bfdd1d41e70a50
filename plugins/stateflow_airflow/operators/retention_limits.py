"""Limits for kept checkpoints, savepoints and files of tables, and what a request deletes beyond them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from stateflow_airflow.failures import config_failure
from stateflow_airflow.operators.template_values import to_count, to_duration

if TYPE_CHECKING:
    from stateflow.checkpoint.savepoints.catalog import StoredSavepoint

Limit = int | str | None
"""A number in an operator's argument, which may be a template."""


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Limits for checkpoints and periodic savepoints.

    Args:
        checkpoints: number of newest checkpoints to keep; None for the job's own setting.
        savepoints: number of newest periodic savepoints to keep; None for all.
        max_age: periodic savepoints older than this are deleted; None for no limit.
    """

    checkpoints: int | None = None
    savepoints: int | None = 7
    max_age: timedelta | None = None

    def __str__(self) -> str:
        age = f", none older than {self.max_age}" if self.max_age else ""
        return (
            f"{'as the job' if self.checkpoints is None else self.checkpoints} checkpoints, "
            f"{'all' if self.savepoints is None else self.savepoints} periodic savepoints{age}"
        )

    @property
    def parts(self) -> dict[str, object]:
        """The limits as parts of a digest."""
        age = None if self.max_age is None else self.max_age.total_seconds()
        return {"checkpoints": self.checkpoints, "savepoints": self.savepoints, "max_age": age}

    @classmethod
    def of_arguments(cls, retain: Limit, savepoints: Limit, max_age: timedelta | str | None) -> Retention:
        """Returns the limits in rendered arguments of an operator. Raises PermanentFailure for a wrong value."""
        return cls(
            checkpoints=to_count("retain", retain, "checkpoints"),
            savepoints=to_count("savepoints", savepoints, "savepoints"),
            max_age=to_duration("savepoints_max_age", max_age),
        )


@dataclass(frozen=True, kw_only=True)
class TableMaintenance:
    """How the Delta tables of a job's sinks are maintained.

    Args:
        older_than: how long files are kept after they were removed from a table, for readers of older versions. A file
            that a kept checkpoint or savepoint needs is kept in any case.
        optimize: whether to combine small files as well.
        sinks: uids of the sinks; empty for all sinks with a Delta table.
    """

    older_than: timedelta = timedelta(days=7)
    optimize: bool = True
    sinks: tuple[str, ...] = ()


def read_retention(retain: Limit, savepoints: Limit, max_age: timedelta | str | None) -> Retention:
    """Returns the limits that a DAG file itself sets.

    What a template renders may come from a user who triggers the DAG: such a limit is configured only where the
    operator's argument `configured` has it.

    Args:
        retain: number of checkpoints, as given to the operator, before templates are rendered.
        savepoints: number of savepoints, likewise.
        max_age: age of savepoints, likewise.
    """
    given = (value if _is_constant(value) else None for value in (retain, savepoints, max_age))
    return Retention.of_arguments(*given)  # type: ignore[arg-type]


def _is_constant(value: object) -> bool:
    """Returns whether the DAG file gives the value itself: not a template, and not the output of a task."""
    return isinstance(value, int | timedelta) or (isinstance(value, str) and "{" not in value)


def retention_loss(
    job_root: str, requested: Retention, configured: Retention, disposed: StoredSavepoint | None
) -> tuple[list[int], list[str]]:
    """Returns the ids of checkpoints and the names of savepoints that only the requested limits delete.

    Args:
        job_root: the job root.
        requested: the limits that are to be applied.
        configured: the limits that need no approval.
        disposed: a savepoint that is deleted as well, and that the limits do not count.
    """
    from stateflow.checkpoint.savepoints.cleanup import SavepointRule
    from stateflow.operations import prune_savepoints

    without = disposed.folder if disposed else ""
    deleted, permitted = (
        prune_savepoints(
            job_root, SavepointRule(limits.savepoints, limits.max_age), dry_run=True, without=without
        ).deleted
        for limits in (requested, configured)
    )
    savepoints = [name for name in deleted if name not in permitted]
    if requested.checkpoints is None:
        return [], savepoints
    restorable = _restorable(job_root)
    permitted_ids = restorable if configured.checkpoints is None else restorable[-configured.checkpoints :]
    left = restorable[-requested.checkpoints :]
    return [number for number in permitted_ids if number not in left], savepoints


def savepoint_to_delete(job_root: str, name: str, *, must_exist: bool) -> StoredSavepoint | None:
    """Returns the savepoint that a user wants to delete; None without a name, and if there is none of this name.

    Args:
        job_root: the job root.
        name: name or folder of the savepoint; may be empty.
        must_exist: whether a name that no savepoint has is an error. A later try may have deleted it already.
    """
    from stateflow.checkpoint.savepoints.catalog import find_savepoint
    from stateflow.operations.job_root import open_root

    if not name:
        return None
    found = find_savepoint(open_root(job_root).storage, name)
    if found is None and must_exist:
        raise config_failure(
            f"there is no savepoint {name}", "list savepoints: stateflow savepoint list", savepoint=name
        )
    return found


def newest_beyond(job_root: str, checkpoints: int | None) -> int:
    """Returns the id of the newest checkpoint beyond a number of checkpoints to keep; 0 if there is none."""
    beyond = _restorable(job_root)[:-checkpoints] if checkpoints else []
    return beyond[-1] if beyond else 0


def _restorable(job_root: str) -> list[int]:
    """Returns the ids of the checkpoints that the job can continue from, oldest first."""
    from stateflow.operations.job_root import open_root

    root = open_root(job_root)
    return [ref.id for ref in root.checkpoints.restorable(root.head())]
