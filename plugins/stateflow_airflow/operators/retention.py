"""Deletes what no checkpoint needs any more, while the job runs or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from stateflow_airflow.failures import failure, misconfigured
from stateflow_airflow.retry import RetryByErrorCode
from stateflow_airflow.versions import require_supported

if TYPE_CHECKING:
    from airflow.sdk import Context

require_supported()


class StateflowRetentionOperator(BaseOperator):
    """Collects the garbage of one job root, and says what the job keeps.

    It needs no Spark and no lock: nothing that a running job could still need is ever garbage.

    **Returns** (XCom) ``job``, ``head_seq``, ``retained`` (checkpoint ids), ``files``, ``bytes_freed``,
    ``dry_run`` and ``unknown`` (names below the job root that stateflow does not recognise, and leaves
    alone).

    Args:
        job_root: the job's root, as in `StateflowRunOperator`. Templated.
        retain: keep this many of the newest checkpoints from now on; None for what the job's own runs
            decided. Templated.
        preview: a dry run: only say what would be deleted. Templated.
    """

    template_fields: Sequence[str] = ("job_root", "retain", "preview")
    ui_color = "#e8e4f3"

    def __init__(
        self, *, job_root: str, retain: int | str | None = None, preview: bool | str = False, **kwargs: Any
    ) -> None:
        kwargs.setdefault("retry_policy", RetryByErrorCode())
        super().__init__(**kwargs)
        self.job_root = job_root
        self.retain = retain
        self.preview = preview

    def execute(self, context: Context) -> dict[str, Any]:
        """Collects once."""
        from stateflow.errors import StateflowError
        from stateflow.ops import collect_garbage

        retain, preview = _count(self.retain), _truth(self.preview)
        try:
            report = collect_garbage(self.job_root, retain=retain, dry_run=preview)
        except StateflowError as error:
            raise failure(error.code, str(error), "", retryable=error.retryable) from error
        verb = "would be" if preview else "were"
        self.log.info(
            "%s: %d files with %d bytes %s deleted; checkpoints kept: %s",
            report.job,
            report.files,
            report.bytes_freed,
            verb,
            ", ".join(map(str, report.retained)) or "none",
        )
        if report.unknown:
            self.log.warning("Not recognised and left alone: %s", ", ".join(report.unknown))
        return {
            "job": report.job,
            "head_seq": report.head_seq,
            "retained": list(report.retained),
            "files": report.files,
            "bytes_freed": report.bytes_freed,
            "dry_run": report.dry_run,
            "unknown": list(report.unknown),
        }


# Rendered templates are texts.
def _count(value: int | str | None) -> int | None:
    if value is None or value in ("", "None"):
        return None
    if not str(value).isdecimal() or int(value) < 1:
        raise misconfigured(f"retain={value!r} is not a number of checkpoints", "give 1 or more, or None")
    return int(value)


def _truth(value: bool | str) -> bool:
    if str(value).lower() not in ("true", "false"):
        raise misconfigured(f"preview={value!r} is neither true nor false", "give true or false")
    return str(value).lower() == "true"
