"""The operator that compares the state of two snapshots, and fails if they differ more than allowed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from stateflow_airflow.failures import StateflowTaskFailed, config_failure, failure, log_failure
from stateflow_airflow.operators.base import JobRootOperator
from stateflow_airflow.operators.template_values import check_job_root, check_task_location, to_words
from stateflow_airflow.versions import require_supported

if TYPE_CHECKING:
    from airflow.sdk import Context

    from stateflow.compare.snapshots import SnapshotDiff
    from stateflow.compare.summary import DiffLimits, StateDiff

require_supported()

_LISTED = 20


class StateflowDiffOperator(JobRootOperator):
    """Compares the state of two snapshots; fails if a state differs more than allowed.

    With a shadow fork of a job that runs a new version, this validates the version before it is deployed. It needs no
    Spark and no slot of the job's pool; runs continue, since it pins the checkpoints.

    **Returns** (XCom) ``keys``, ``read_bytes``, and ``states``: a list with ``operator``, ``state``, ``kind``,
    ``added``, ``removed``, ``changed``, ``old_bytes``, ``new_bytes``, ``old_keys``, ``new_keys`` and ``reads_as``.

    **Fails** with the code ``state-differs``, which is not retried; its facts have the states, and some of their keys.

    Args:
        job_root: the job's root, see `StateflowRunOperator`. Templated.
        snapshot: its checkpoint or savepoint: an id, a name, or another target of a restore; by default, its newest
            checkpoint. Templated.
        other_root: the other job root, or the folder of a savepoint; by default, `job_root`. Templated.
        other: the other checkpoint or savepoint, in `other_root`, as for `snapshot`. Templated.
        operators: uids of the operators to compare, as a list or a text with commas; all by default. Templated.
        ignored: states that may differ, each as ``OPERATOR`` or ``OPERATOR.STATE``. Templated.
        max_keys: number of keys of each state that may differ; None for any number. Templated.
        max_fraction: part of each state's keys that may differ, from 0 to 1; None for any part. To know it, all files
            of both snapshots are read. Templated.
    """

    template_fields: Sequence[str] = (
        "job_root",
        "snapshot",
        "other_root",
        "other",
        "operators",
        "ignored",
        "max_keys",
        "max_fraction",
    )
    ui_color = "#dff2e1"

    def __init__(
        self,
        *,
        job_root: str,
        snapshot: int | str = "",
        other_root: str = "",
        other: int | str = "",
        operators: str | Iterable[str] = (),
        ignored: str | Iterable[str] = (),
        max_keys: int | str | None = 0,
        max_fraction: float | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(job_root=job_root, **kwargs)
        self.snapshot = snapshot
        self.other_root = other_root
        self.other = other
        self.operators = operators
        self.ignored = ignored
        self.max_keys = max_keys
        self.max_fraction = max_fraction

    def execute(self, context: Context) -> dict[str, object]:
        """Compares the snapshots."""
        from stateflow.compare.summary import DiffSummary, states_beyond
        from stateflow.outputs import to_object

        limits = self._limits()
        with self.library():
            found = self._compared(limits)
            beyond = states_beyond(found.states, limits, to_words(self.ignored))
        for state in found.states:
            counts = (state.added, state.removed, state.changed)
            self.log.info("%s.%s: %d added, %d removed, %d changed", state.operator, state.state, *counts)
        if beyond:
            raise log_failure(_differs(found, beyond))
        return to_object(DiffSummary(found.keys, found.read_bytes, found.states))

    def _compared(self, limits: DiffLimits) -> SnapshotDiff:
        from stateflow.compare.snapshots import DiffOptions, open_and_compare
        from stateflow.storage import open_location

        if self.other_root:
            # The argument is templated, so it is checked like the location of a savepoint.
            open_location(check_task_location("other_root", self.other_root), self.job_root)
        options = DiffOptions(to_words(self.operators), counts_all=limits.fraction is not None)
        # Not 0, the checkpoint of a run that made none: that is an unknown one, and not the newest one.
        old, new = (None if given in (None, "") else given for given in (self.snapshot, self.other))
        return open_and_compare((check_job_root(self.job_root), old), (self.other_root or self.job_root, new), options)

    def _limits(self) -> DiffLimits:
        from stateflow.compare.summary import DiffLimits

        keys, fraction = (
            None if value in (None, "", "None") else value for value in (self.max_keys, self.max_fraction)
        )
        try:
            limits = DiffLimits(None if keys is None else int(keys), None if fraction is None else float(fraction))
        except (TypeError, ValueError):
            limits = DiffLimits(-1)
        if (limits.keys or 0) < 0 or not 0 <= (limits.fraction or 0) <= 1:
            raise config_failure(
                "a limit is not a number",
                "pass a number of keys as max_keys, and a number from 0 to 1 as max_fraction",
                max_keys=self.max_keys,
                max_fraction=self.max_fraction,
            )
        return limits


def _differs(found: SnapshotDiff, beyond: Sequence[StateDiff]) -> StateflowTaskFailed:
    from stateflow.outputs import to_object

    names = [f"{state.operator}.{state.state}" for state in beyond]
    counts = "; ".join(f"{name}: {state.keys} keys" for name, state in zip(names, beyond, strict=True))
    facts = {"states": [to_object(state) for state in beyond], "changes": _some_changes(found, names)}
    return failure(
        "state-differs",
        f"the state of {found.old.label} and {found.new.label} differs more than allowed: {counts}",
        "list the keys with `stateflow diff --keys`; if the change is intended, raise the limits or ignore the states",
        facts,
        retryable=False,
    )


def _some_changes(found: SnapshotDiff, names: Sequence[str]) -> list[dict[str, str | None]]:
    """Returns some of the keys that differ in these states."""
    assert found.changes is not None
    rows = chain.from_iterable(batch.to_pylist() for batch in found.changes)
    return list(islice((row for row in rows if f"{row['operator']}.{row['state']}" in names), _LISTED))
