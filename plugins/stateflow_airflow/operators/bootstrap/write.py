"""The operators that write a savepoint from files, and a changed copy of a savepoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from stateflow_airflow.failures import config_failure
from stateflow_airflow.operators.base import LibraryOperator, TaskArgument, requester
from stateflow_airflow.operators.template_values import (
    as_list,
    check_job_root,
    check_task_location,
    job_code,
    to_count,
    to_lines,
)
from stateflow_airflow.versions import require_supported

if TYPE_CHECKING:
    from datetime import datetime

    from airflow.sdk import Context

    from stateflow.operations.written_savepoints import WrittenSavepoint

require_supported()


class _WritingOperator(LibraryOperator):
    """An operator that writes a savepoint into a folder; a retry writes the same one, or finds it."""

    ui_color = "#dff2e1"

    def _reported(self, written: WrittenSavepoint, context: Context) -> dict[str, object]:
        """Logs a savepoint, adds it to the assets, and returns it for XCom."""
        from stateflow.outputs import to_object

        self.log.info(
            "savepoint %s of %s, %d bytes, in %s", written.name, written.job, written.size_bytes, written.path
        )
        for uid in written.without_position:
            self.log.warning("source %s has no position, and begins at its start", uid)
        found = to_object(written)
        self.add_to_assets(context, found)
        return found


class StateflowWriteSavepointOperator(_WritingOperator):
    """Writes a savepoint from files with the rows of states, with which a new job root starts.

    Pass the savepoint to `StateflowRunOperator(from_savepoint=…)`. See `stateflow savepoint write` for the form of
    states, columns and positions. The operator loads the job file in the task. It starts Spark there only to import
    the state of a query of Spark, with the settings of the job; for much state on a cluster, run the command by
    ``spark-submit``.

    A task that is killed leaves no savepoint or the complete one. A retry completes it, and removes what it does not
    need; a retry after the end returns the same savepoint. Another savepoint in the folder is an error, which is not
    retried.

    **Returns** (XCom) ``path``, ``name``, ``job``, ``max_parallelism``, ``bytes``, ``operators``, ``states``,
    ``sources`` and ``without_position``. Each asset in `outlets` receives an event with these values.

    Args:
        job: absolute path of the job file that starts from the savepoint. Templated.
        into: absolute path or URI of the folder of the savepoint; it must be below one of the `locations`. Templated.
        states: files of states, each as ``OPERATOR.STATE=FILES``; or ``OPERATOR.STATE=spark:CHECKPOINT``. A list, or
            one per line. Files and checkpoints must be below one of the `locations`. Templated.
        columns: columns of states of Spark, each as ``OPERATOR.STATE.COLUMN=EXPRESSION``. Not templated: an expression
            of Spark's SQL can call code.
        sources: positions of sources, each as ``UID=POSITION``; a list, or one per line. Templated.
        max_parallelism: number of key groups; by default the number in the settings, or 128. Templated.
        parallelism: number of subtasks whose state is written; by default 4. Templated.
        at: time of the savepoint in ISO 8601, from which times to live count; by default, the time of a savepoint which
            an earlier try has written, or now. Templated.
        name: name of the savepoint; by default the name of its folder. Templated.
        reason: why it is written, for display. Templated.
        settings: see `StateflowRunOperator`. Templated.
    """

    template_fields: Sequence[str] = (
        "job",
        "into",
        "states",
        "sources",
        "max_parallelism",
        "parallelism",
        "at",
        "name",
        "reason",
        "settings",
    )
    template_fields_renderers = {"settings": "json"}

    def __init__(
        self,
        *,
        job: str,
        into: str,
        states: str | Iterable[str] = (),
        columns: str | Iterable[str] = (),
        sources: str | Iterable[str] = (),
        max_parallelism: int | str | None = None,
        parallelism: int | str | None = None,
        at: str = "",
        name: str = "",
        reason: str = "",
        settings: Mapping[str, object] | str | None = None,
        **kwargs: TaskArgument,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.into = into
        self.states = states
        self.columns = as_list(columns)
        self.sources = sources
        self.max_parallelism = max_parallelism
        self.parallelism = parallelism
        self.at = at
        self.name = name
        self.reason = reason
        self.settings = cast("Mapping[str, object]", settings or {})

    def execute(self, context: Context) -> dict[str, object]:
        """Writes the savepoint, or finds the one that an earlier try has written."""
        from stateflow.operations.written_savepoints import WriteRequest, write_savepoint

        at = self._time()
        with self.library():
            code = job_code(self.job, self.settings)
            request = WriteRequest(
                code.file,
                check_task_location("into", self.into),
                to_lines(self.states),
                to_lines(self.sources),
                self.columns,
                code.layers,
                to_count("max_parallelism", self.max_parallelism, "key groups"),
                to_count("parallelism", self.parallelism, "subtasks"),
                self.name,
                at,
                self.reason,
                self.log.info,
                requester(context),
            )
            written = write_savepoint(request)
        return self._reported(written, context)

    def _time(self) -> datetime | None:
        from stateflow.clock import parse_timestamp

        if self.at in ("", "None"):
            return None
        try:
            return parse_timestamp(self.at)
        except ValueError as error:
            raise config_failure(
                f"at={self.at!r} is not in ISO 8601 format", "for example 2026-01-31T03:00", given=self.at
            ) from error


class StateflowChangeSavepointOperator(_WritingOperator):
    """Writes a copy of a savepoint without some operators, or with rows that functions return.

    See `stateflow savepoint change`. The savepoint stays as it is. The functions run in the task. Retries, result and
    assets are as for `StateflowWriteSavepointOperator`.

    Args:
        savepoint: absolute path or URI of the savepoint, below one of the `locations`; or its name in `job_root`.
            Templated.
        into: absolute path or URI of the folder of the copy; it must be below one of the `locations`. Templated.
        job_root: the job's root, see `StateflowRunOperator`; needed for a name. Templated.
        remove: uids of operators that the copy does not have; a list, or one per line. Templated.
        transforms: functions for the rows of states, each as ``OPERATOR.STATE=FILE.py:FUNCTION`` with an absolute path,
            or ``OPERATOR.STATE=MODULE:FUNCTION``. Not templated: who may only trigger the DAG must not choose code.
        job: absolute path of the job file that starts from the copy, which declares the states in `transforms`.
            Templated.
        name: name of the copy; by default the name of its folder. Templated.
        reason: why it is written, for display. Templated.
        settings: see `StateflowRunOperator`. Templated.
    """

    template_fields: Sequence[str] = ("savepoint", "into", "job_root", "remove", "job", "name", "reason", "settings")
    template_fields_renderers = {"settings": "json"}

    def __init__(
        self,
        *,
        savepoint: str,
        into: str,
        job_root: str = "",
        remove: str | Iterable[str] = (),
        transforms: str | Iterable[str] = (),
        job: str = "",
        name: str = "",
        reason: str = "",
        settings: Mapping[str, object] | str | None = None,
        **kwargs: TaskArgument,
    ) -> None:
        super().__init__(**kwargs)
        self.savepoint = savepoint
        self.into = into
        self.job_root = job_root
        self.remove = remove
        self.transforms = as_list(transforms)
        self.job = job
        self.name = name
        self.reason = reason
        self.settings = cast("Mapping[str, object]", settings or {})

    def execute(self, context: Context) -> dict[str, object]:
        """Writes the copy, or finds the one that an earlier try has written."""
        from stateflow.operations.changed_savepoints import ChangeRequest, change_savepoint

        with self.library():
            code = job_code(self.job, self.settings) if self.job else None
            request = ChangeRequest(
                check_task_location("savepoint", self.savepoint) if "/" in self.savepoint else self.savepoint,
                check_task_location("into", self.into),
                to_lines(self.remove),
                self.transforms,
                code.file if code else None,
                code.layers if code else (),
                check_job_root(self.job_root) if self.job_root else "",
                self.name,
                self.reason,
                self.log.info,
                requester(context),
            )
            written = change_savepoint(request)
        return self._reported(written, context)
