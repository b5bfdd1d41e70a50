"""The operator that copies a savepoint with another max parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from stateflow_airflow.failures import misconfigured
from stateflow_airflow.launches.run_result import with_offsets
from stateflow_airflow.operators.base import JobRootOperator
from stateflow_airflow.operators.task_requests import requester
from stateflow_airflow.operators.template_values import checked_location, checked_root, to_count
from stateflow_airflow.versions import require_supported

if TYPE_CHECKING:
    from airflow.sdk import Context

require_supported()


class StateflowRekeyOperator(JobRootOperator):
    """Copies a savepoint with another max parallelism, in the canonical format.

    It needs no Spark, and the job may run: the savepoint is only read. Start a new job root from the copy, with
    `from_savepoint` of `StateflowRunOperator`, or restore the copy. A retry continues where an earlier try was killed,
    and returns the same copy.

    **Returns** (XCom) the same as `StateflowSavepointOperator`, for the copy.

    Args:
        job_root: the root of the savepoint's job, see `StateflowRunOperator`. Templated.
        savepoint: name of a savepoint of the job, or the path or URI of a savepoint's folder. Templated.
        max_parallelism: number of key groups of the copy. Templated.
        into: path or URI of a folder for the copy's folder, below one of `locations`, or one that Airflow's
            configuration allows; not in the job root. Templated.
        name: name of the copy; by default, that of the savepoint. Templated.
        reason: stored with the copy. Templated.
    """

    template_fields: Sequence[str] = ("job_root", "savepoint", "max_parallelism", "into", "name", "reason")
    ui_color = "#dff2e1"

    def __init__(
        self, *, savepoint: str, max_parallelism: int | str, into: str, name: str = "", reason: str = "", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.savepoint = savepoint
        self.max_parallelism = max_parallelism
        self.into = into
        self.name = name
        self.reason = reason

    def execute(self, context: Context) -> dict[str, object]:
        """Makes the copy, or finds the one that an earlier try made."""
        from stateflow.operations import RekeyRequest, rekey_savepoint

        groups = to_count("max_parallelism", self.max_parallelism, "key groups")
        if groups is None:
            raise misconfigured("max_parallelism is not given", "pass the number of key groups of the copy")
        if not self.savepoint:
            raise misconfigured("savepoint is not given", "pass the name of a savepoint, or the path of its folder")
        with self.library():
            into = checked_location("into", self.into)
            request = RekeyRequest(self.savepoint, groups, into, self.name, requester(context), self.reason)
            made = rekey_savepoint(request, checked_root(self.job_root))
        self.log.info(
            "Savepoint %s with %d key groups, %d bytes, stored in %s", made.name, groups, made.bytes, made.path
        )
        return with_offsets(asdict(made))
