"""Operators that delete old savepoints and unreferenced files of a job, and maintain the tables of its sinks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from stateflow_airflow.failures import config_failure
from stateflow_airflow.operators.approvals.approval import ApprovalCheck, Decision
from stateflow_airflow.operators.approvals.command_approval import retention_question
from stateflow_airflow.operators.base import JobOperator, JobRootOperator, requester
from stateflow_airflow.operators.retention_limits import (
    Limit,
    Retention,
    newest_beyond,
    read_retention,
    savepoint_to_delete,
)
from stateflow_airflow.operators.template_values import as_list, check_job_root, job_code, to_bool, to_duration
from stateflow_airflow.versions import require_supported

if TYPE_CHECKING:
    from airflow.sdk import Context

    from stateflow.checkpoint.savepoints.catalog import StoredSavepoint
    from stateflow.checkpoint.savepoints.cleanup import SavepointRule
    from stateflow.connectors.delta.maintenance import VacuumReport
    from stateflow.operations import GarbageReport, PruneReport
    from stateflow.operations.garbage import RetentionOrder

require_supported()


class StateflowRetentionOperator(JobRootOperator):
    """Deletes periodic savepoints beyond the limits, then the garbage of one job root.

    It needs no Spark and no lock, and may run concurrently with the job: it never deletes a file that a running job
    could still need. It always keeps the newest periodic savepoint, and all savepoints that a user, a stop or an
    upgrade created. It logs the savepoints to delete before it deletes anything.

    It deletes nothing that the configured numbers keep, unless a user has approved exactly these limits, and each
    checkpoint and savepoint that they delete. The numbers that the DAG file gives as arguments are the configured ones;
    for arguments with templates, pass `configured`.

    **Returns** (XCom) ``job``, ``head_seq``, ``retained_checkpoint_ids``, ``deleted_files``, ``freed_bytes``,
    ``dry_run``, ``unknown_keys`` (names below the job root that stateflow does not recognize and does not delete),
    ``deleted_savepoints``, ``kept_savepoints`` (names) and ``savepoints_freed_bytes``.

    Args:
        job_root: the job's root, see `StateflowRunOperator`. Templated.
        retain: number of newest checkpoints to keep from now on; None for the setting of the job's runs. Templated.
        savepoints: number of newest periodic savepoints to keep; None for all. Templated.
        savepoints_max_age: age above which periodic savepoints are deleted; a timedelta, or a text such as ``30d``.
            Templated.
        dispose: name or folder of a savepoint to delete as well, of any origin; always with an approval. Templated.
        reason: why it is deleted, for the job's history. Templated.
        preview: whether to only report what would be deleted; with `dispose`, of a savepoint that exists. Templated.
        configured: limits that need no approval. Not templated.
        approval: the output of `StateflowRetentionApprovalOperator` with the same limits. Templated.
        self_approval: whether the user who triggered the DAG run may have approved.
    """

    template_fields: Sequence[str] = (
        *("job_root", "retain", "savepoints", "savepoints_max_age", "dispose", "reason", "preview", "approval"),
    )
    template_fields_renderers = {"approval": "json"}
    ui_color = "#e8e4f3"

    def __init__(
        self,
        *,
        job_root: str,
        retain: Limit = None,
        savepoints: Limit = None,
        savepoints_max_age: timedelta | str | None = None,
        dispose: str = "",
        reason: str = "",
        preview: bool | str = False,
        configured: Retention | None = None,
        approval: object = None,
        self_approval: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(job_root=job_root, **kwargs)
        self.retain = retain
        self.savepoints = savepoints
        self.savepoints_max_age = savepoints_max_age
        self.dispose = dispose
        self.reason = reason
        self.preview = preview
        self.configured = configured
        self.approval = approval
        self.self_approval = self_approval
        self._given = (retain, savepoints, savepoints_max_age)

    def execute(self, context: Context) -> dict[str, object]:
        """Deletes what is beyond the limits, or reports it."""
        from stateflow.checkpoint.savepoints.cleanup import SavepointRule
        from stateflow.operations import collect_garbage, prune_savepoints
        from stateflow.operations.garbage import RetentionReport
        from stateflow.outputs import to_object

        preview = to_bool("preview", self.preview)
        with self.library():
            limits = Retention.of_arguments(self.retain, self.savepoints, self.savepoints_max_age)
            root, rule = check_job_root(self.job_root), SavepointRule(limits.savepoints, limits.max_age)
            # Before the approval is compared: what the job makes from here on moves more beyond the limits, which no
            # user has seen.
            found = savepoint_to_delete(root, self.dispose.strip(), must_exist=preview)
            planned, upto = self._planned(root, rule, found), newest_beyond(root, limits.checkpoints)
            decision = Decision(requester(context)) if preview else self._permitted_by(context, limits, found)
            by = decision.by
            gone, freed = self._dispose(root, found, by, preview=preview) if found else ((), 0)
            pruned = planned if preview else prune_savepoints(root, rule, by=by, only=planned.deleted)
            report = collect_garbage(
                root, retain=limits.checkpoints, upto=upto, dry_run=preview, order=self._order(decision)
            )
        self._log_report(report)
        return to_object(RetentionReport(report, gone + pruned.deleted, pruned.kept, freed + pruned.freed_bytes))

    def _dispose(self, root: str, found: StoredSavepoint, by: str, *, preview: bool) -> tuple[tuple[str, ...], int]:
        """Deletes the savepoint that the user wants to delete; returns its name, and how many bytes it has."""
        from stateflow.operations import dispose

        self.log.info("savepoint to delete: %s, with the id %s", found.document.name, found.document.id)
        if not preview:
            # By the id that a user has approved: the name may be another savepoint's by now.
            dispose(root, self.dispose.strip(), by=by, reason=self.reason.strip(), expected_id=found.document.id)
        return (found.document.name,), found.size

    def _order(self, decision: Decision) -> RetentionOrder:
        from stateflow.operations.garbage import RetentionOrder

        return RetentionOrder(decision.by, decision.requested_by, self.reason.strip(), decision.note)

    def _permitted_by(self, context: Context, limits: Retention, disposed: StoredSavepoint | None) -> Decision:
        """Returns the decision to record. Raises PermanentFailure if an approval is missing."""
        check = ApprovalCheck(self.approval, self.self_approval)
        configured = self.configured or read_retention(*self._given)
        question = retention_question(self.job_root, limits, configured, approved=check.answer.loss, disposed=disposed)
        if question is None:
            return Decision(requester(context))
        return check.decision(question.digest, context)

    def _planned(self, root: str, rule: SavepointRule, disposed: StoredSavepoint | None) -> PruneReport:
        from stateflow.operations import prune_savepoints

        planned = prune_savepoints(root, rule, dry_run=True, without=disposed.folder if disposed else "")
        self.log.info(
            "%s: periodic savepoints to delete: %s; savepoints to keep: %s",
            planned.job,
            ", ".join(planned.deleted) or "none",
            ", ".join(planned.kept) or "none",
        )
        return planned

    def _log_report(self, report: GarbageReport) -> None:
        self.log.info(
            "%s: %s %d files with %d bytes; checkpoints kept: %s",
            report.job,
            "would delete" if report.dry_run else "deleted",
            report.deleted_files,
            report.freed_bytes,
            ", ".join(map(str, report.retained_checkpoint_ids)) or "none",
        )
        if report.unknown_keys:
            self.log.warning("Not recognized and not deleted: %s", ", ".join(report.unknown_keys))


class StateflowTablesOperator(JobOperator):
    """Optimizes, then vacuums the Delta tables of a job's sinks.

    It needs no Spark and no lock, and may run concurrently with the job. It combines small files without a change of
    rows, and deletes files that were removed from a table some time ago. It never deletes a file that a retained
    checkpoint, a savepoint or output that is not published yet needs, and logs which of them hold which version.

    **Returns** (XCom) ``optimized`` and ``vacuumed``: a list of facts for each table, as ``stateflow tables optimize
    --json`` and ``stateflow tables vacuum --json`` print them.

    Args:
        job: absolute path of the job file. Templated.
        job_root: the job's root, see `StateflowRunOperator`. Templated.
        settings: settings of the job's runs. Templated.
        older_than: how long files are kept after they were removed from a table; a timedelta, or a text such as
            ``7d``. Not templated: a user who may only trigger the DAG cannot shorten it.
        tables: uids of the sinks; empty for all sinks with a Delta table.
        optimize: whether to combine small files.
        preview: whether to only report what would be done. Templated.
    """

    template_fields: Sequence[str] = ("job", "job_root", "settings", "preview")
    template_fields_renderers = {"settings": "json"}
    ui_color = "#e8e4f3"

    def __init__(
        self,
        *,
        job: str,
        job_root: str,
        settings: Mapping[str, object] | str | None = None,
        older_than: timedelta | str = "7d",
        tables: str | Sequence[str] = (),
        optimize: bool = True,
        preview: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(job=job, job_root=job_root, settings=settings, **kwargs)
        self.older_than = older_than
        self.tables = as_list(tables)
        self.optimize = optimize
        self.preview = preview

    def execute(self, context: Context) -> dict[str, object]:
        """Optimizes and vacuums the tables, or reports what would be done."""
        from stateflow.connectors.delta.maintenance import MaintenanceReport
        from stateflow.operations import VacuumRequest, optimize_tables, vacuum_tables
        from stateflow.outputs import to_object

        preview = to_bool("preview", self.preview)
        older_than = to_duration("older_than", self.older_than)
        if older_than is None:
            raise config_failure("older_than is not given", "pass a duration, such as 7d; 0s for all removed files")
        with self.library():
            root, code = check_job_root(self.job_root), job_code(self.job, self.settings)
            optimized = optimize_tables(root, code, self.tables, dry_run=preview) if self.optimize else []
            vacuumed = vacuum_tables(root, code, VacuumRequest(older_than, self.tables, preview))
        for report in optimized:
            self.log.info("%s: %d small files, %d bytes", report.uid, report.combined_files, report.combined_bytes)
        for removed in vacuumed:
            self._log_vacuum(removed, preview)
        return to_object(MaintenanceReport(tuple(optimized), tuple(vacuumed)))

    def _log_vacuum(self, report: VacuumReport, preview: bool) -> None:
        verb = "would delete" if preview else "deleted"
        self.log.info("%s: %s %d files with %d bytes", report.uid, verb, report.deleted_files, report.freed_bytes)
        for held in report.held:
            holders = ", ".join(held.holders)
            self.log.info("version %d: %d files are kept for %s", held.version, held.files, holders)
        for label in report.lost:
            self.log.warning("%s: table %s can no longer be restored to its version", label, report.uid)
