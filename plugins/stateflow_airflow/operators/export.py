"""The operator that exports a state of a job for other tasks and DAGs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stateflow_airflow.operators.base import JobRootOperator
from stateflow_airflow.operators.template_values import check_job_root, check_task_location, to_member
from stateflow_airflow.versions import require_supported

if TYPE_CHECKING:
    from airflow.sdk import Context

require_supported()


class StateflowExportOperator(JobRootOperator):
    """Writes all rows of one state of a checkpoint or savepoint to a file, as JSON lines or Parquet.

    It needs no Spark and no slot of the job's pool; a run of the job continues, since the operator pins the checkpoint.
    A retry replaces the file.

    **Returns** (XCom) an `ExportReport`: ``output``, ``rows``, ``size_bytes``, ``checkpoint_id`` and others. Each asset
    in `outlets` receives an event with these values.

    Args:
        job_root: the job's root, see `StateflowRunOperator`. Templated.
        operator_uid: uid of the operator in the job. Templated.
        state_name: name of the state, as `stateflow state show` prints it, such as ``total``, ``_timers`` or
            ``_operator/buffer``. Templated.
        into: absolute path or URI of the file; it must be below one of the `locations`. Templated.
        stored_as: ``jsonl`` or ``parquet``; by default, Parquet if the name of the file ends with ``.parquet``.
            Templated.
        snapshot: id of a checkpoint, name of a savepoint, or another target of a restore; by default, the newest
            checkpoint. Templated.
    """

    template_fields: Sequence[str] = ("job_root", "operator_uid", "state_name", "into", "stored_as", "snapshot")
    ui_color = "#dff2e1"

    def __init__(
        self,
        *,
        job_root: str,
        operator_uid: str,
        state_name: str,
        into: str,
        stored_as: str = "",
        snapshot: int | str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(job_root=job_root, **kwargs)
        self.operator_uid = operator_uid
        self.state_name = state_name
        self.into = into
        self.stored_as = stored_as
        self.snapshot = snapshot

    def execute(self, context: Context) -> dict[str, object]:
        """Writes the file."""
        from stateflow.operations.state_export import ExportFormat, ExportRequest, export_state
        from stateflow.outputs import to_object

        request = ExportRequest(
            check_job_root(self.job_root),
            self.operator_uid,
            self.state_name,
            check_task_location("into", self.into),
            to_member("stored_as", self.stored_as, ExportFormat) if self.stored_as else None,
            None if self.snapshot in (None, "") else self.snapshot,
        )
        with self.library():
            report = export_state(request)
        self.log.info("%d rows of %s in %s, %d bytes", report.rows, report.label, report.output, report.size_bytes)
        found = to_object(report)
        self.add_to_assets(context, found)
        return found
