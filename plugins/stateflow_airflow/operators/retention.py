"""Deletes periodic savepoints that had their time, and what no checkpoint needs, while the job runs or not."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from stateflow_airflow.operators.base import JobRootOperator
from stateflow_airflow.task_requests import as_age, as_count, as_truth, asker, check_root, told_as_failures
from stateflow_airflow.versions import require_supported

if TYPE_CHECKING:
    from airflow.sdk import Context

    from stateflow.checkpoint.retention import SavepointRule
    from stateflow.ops import GarbageReport, PruneReport

require_supported()


class StateflowRetentionOperator(JobRootOperator):
    """Deletes periodic savepoints that are too many or too old, then the garbage of one job root.

    It needs no Spark and no lock: nothing that a running job could still need is ever garbage. The newest periodic
    savepoint stays, whatever its age; those that a person took, or that a stop or an upgrade left, are never deleted.
    What is to go is in the task's log before anything is deleted.

    **Returns** (XCom) ``job``, ``head_seq``, ``retained`` (checkpoint ids), ``files``, ``bytes_freed``,
    ``dry_run``, ``unknown`` (names below the job root that stateflow does not recognise, and leaves alone),
    ``savepoints_deleted``, ``savepoints_kept`` (names) and ``savepoints_bytes_freed``.

    Args:
        job_root: the job's root, as in `StateflowRunOperator`. Templated.
        retain: keep this many of the newest checkpoints from now on; None for what the job's own runs
            decided. Templated.
        savepoints: keep this many of the newest periodic savepoints; None for all. Templated.
        savepoints_max_age: delete older periodic ones; a timedelta, or a text like 30d. Templated.
        preview: a dry run: only say what would be deleted. Templated.
    """

    template_fields: Sequence[str] = ("job_root", "retain", "savepoints", "savepoints_max_age", "preview")
    ui_color = "#e8e4f3"

    def __init__(
        self,
        *,
        job_root: str,
        retain: int | str | None = None,
        savepoints: int | str | None = None,
        savepoints_max_age: timedelta | str | None = None,
        preview: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(job_root=job_root, **kwargs)
        self.retain = retain
        self.savepoints = savepoints
        self.savepoints_max_age = savepoints_max_age
        self.preview = preview

    def execute(self, context: Context) -> dict[str, Any]:
        """Deletes once."""
        from stateflow.checkpoint.retention import SavepointRule
        from stateflow.ops import collect_garbage

        preview = as_truth("preview", self.preview)
        retain = as_count("retain", self.retain, "checkpoints")
        keep = as_count("savepoints", self.savepoints, "savepoints")
        with told_as_failures():
            root = check_root(self.job_root)
            rule = SavepointRule(keep, as_age("savepoints_max_age", self.savepoints_max_age))
            pruned = self._prune(root, rule, asker(context), preview)
            report = collect_garbage(root, retain=retain, dry_run=preview)
        self._tell(report)
        return {
            "job": report.job,
            "head_seq": report.head_seq,
            "retained": list(report.retained),
            "files": report.files,
            "bytes_freed": report.bytes_freed,
            "dry_run": report.dry_run,
            "unknown": list(report.unknown),
            "savepoints_deleted": list(pruned.deleted),
            "savepoints_kept": list(pruned.kept),
            "savepoints_bytes_freed": pruned.bytes_freed,
        }

    def _prune(self, root: str, rule: SavepointRule, by: str, preview: bool) -> PruneReport:
        from stateflow.ops import prune_savepoints

        planned = prune_savepoints(root, rule, dry_run=True)
        self.log.info(
            "%s: periodic savepoints to delete: %s; savepoints kept: %s",
            planned.job, ", ".join(planned.deleted) or "none", ", ".join(planned.kept) or "none",
        )  # fmt: skip
        return planned if preview else prune_savepoints(root, rule, by=by)

    def _tell(self, report: GarbageReport) -> None:
        self.log.info(
            "%s: %d files with %d bytes %s deleted; checkpoints kept: %s",
            report.job,
            report.files,
            report.bytes_freed,
            "would be" if report.dry_run else "were",
            ", ".join(map(str, report.retained)) or "none",
        )
        if report.unknown:
            self.log.warning("Not recognised and left alone: %s", ", ".join(report.unknown))
