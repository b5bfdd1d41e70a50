"""Asset events for the days and hours that a job's watermark has closed, and that a restore has reopened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Literal, cast

from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowSkipException

from stateflow_airflow.failures import config_failure
from stateflow_airflow.operators.base import JobRootOperator, TaskArgument
from stateflow_airflow.operators.template_values import check_job_root
from stateflow_airflow.versions import require_partition_keys, require_supported

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.execution_time.context import InletEventsAccessor
    from pydantic import JsonValue

    from stateflow.operations.partitions import Position

require_supported()

POSITION = "position"
"""Name of the position in the extra of an event."""
_PAGE = 500
"""Events that are read at once. More than two announcements have: they count by their numbers, since the clocks of API
servers, which order the events, may differ."""


@dataclass(frozen=True, kw_only=True)
class PartitionEvents:
    """The partitions of event time for which a job has asset events.

    Args:
        unit: ``day`` or ``hour``. Keys of days are like ``2026-01-31``, and keys of hours, in UTC, like
            ``2026-01-31T05``.
        zone: time zone of the days, such as ``Europe/Berlin``.
        since: the day that the events begin with; None for the newest day or hour that is closed when the first event
            is emitted.
    """

    unit: Literal["day", "hour"]
    zone: str = "UTC"
    since: date | None = None


class StateflowPartitionEventsOperator(JobRootOperator):
    """Emits an asset event for each day or hour that the watermark of a job has closed, or that a restore has reopened.

    A partition is closed once its output is published in every table: the lowest watermark of the job's operators has
    passed its end. The events have the partition's key, so that Airflow starts a DAG run for each in a DAG whose
    schedule is a ``PartitionedAssetTimetable`` of the asset. The task reads the job root; it needs no job file, and
    works during a run.

    Airflow stores the events when the task succeeds, and each has the position that the next task continues from: a
    task that is killed, repeated or cleared neither repeats nor omits an event. A task without events is skipped.
    A task emits 200 events at most; the next ones continue.

    **Events** have ``undone``, ``checkpoint_id``, ``watermark_at``, ``unit``, ``zone`` and ``position`` in their extra.
    With ``undone``, a restore has reopened the partition: its rows may change, and another event follows once it is
    closed again. ``checkpoint_id`` is then the restored checkpoint; otherwise the checkpoint with the output.

    **Returns** (XCom) ``undone``, ``partitions`` (the keys), ``checkpoint_id``, ``watermark_at``, ``position`` and
    ``complete`` (whether no further event is due).

    Args:
        job_root: the job root.
        asset: the asset of the events. No other task may have it as an outlet.
        partitions: the partitions.
        undone: whether to emit the events of reopened partitions, or of closed ones. The latter wait until no
            reopened one is left.
    """

    template_fields: Sequence[str] = ("job_root",)
    ui_color = "#d7ecf7"

    def __init__(
        self,
        *,
        job_root: str,
        asset: Asset,
        partitions: PartitionEvents,
        undone: bool = False,
        max_active_tis_per_dag: int | None = 1,
        **kwargs: TaskArgument,
    ) -> None:
        require_partition_keys()
        _check_partitions(partitions)
        given: dict[str, TaskArgument] = {"inlets": [asset], "outlets": [asset], **kwargs}
        super().__init__(job_root=job_root, max_active_tis_per_dag=max_active_tis_per_dag, **given)
        self.asset, self.partitions, self.undone = asset, partitions, undone

    def execute(self, context: Context) -> dict[str, object]:
        """Emits the next events; skips the task if there are none."""
        from stateflow.clock import SystemClock
        from stateflow.operations.partitions import Calendar, is_ahead, next_announcement, read_progress
        from stateflow.outputs import to_object

        position = read_position(context["inlet_events"][self.asset])
        with self.library():
            wanted, now = self.partitions, SystemClock().now()
            calendar = Calendar.of(wanted.unit, wanted.zone)
            progress = read_progress(check_job_root(self.job_root))
            found = next_announcement(position, progress, calendar, now, since=wanted.since) if progress else None
            if progress is not None and is_ahead(progress, now):
                self.log.warning("the watermark is in the future: days are announced when they are over")
        if found is None or found.undone is not self.undone:
            raise AirflowSkipException(_why_none(found is not None, self.undone))
        self.log.info("%s: %s", "reopened" if found.undone else "closed", ", ".join(found.partitions))
        if not found.complete:
            self.log.info("further events follow with the next task")
        returned = to_object(found)
        extra = {name: returned[name] for name in ("undone", "checkpoint_id", "watermark_at", POSITION)}
        event = context["outlet_events"][self.asset]
        event.extra.update(cast("Mapping[str, JsonValue]", {"unit": wanted.unit, "zone": wanted.zone, **extra}))
        event.add_partitions(list(found.partitions))
        return returned


def _why_none(has_others: bool, undone: bool) -> str:
    if has_others:
        return "reopened partitions are announced first" if not undone else "no partition was reopened"
    return "no partition was reopened" if undone else "no further partition is closed"


def _check_partitions(partitions: PartitionEvents) -> None:
    since = partitions.since
    # datetime is a date, whose difference to a day is another one.
    if since is not None and (type(since) is not date or not 2 <= since.year <= 9998):
        raise config_failure("since is not a date between the years 2 and 9998", "pass datetime.date(2026, 1, 31)")
    if partitions.unit not in ("day", "hour"):
        raise config_failure("the unit of partitions is unknown", "pass day or hour", unit=partitions.unit)
    if partitions.unit == "hour" and partitions.zone != "UTC":
        raise config_failure("hours have no time zone", "omit zone: hours are in UTC", zone=partitions.zone)


def read_position(events: InletEventsAccessor) -> Position | None:
    """Returns the position in the asset's newest events; None without one. Events that users have added have none."""
    from stateflow.operations.partitions import parse_position

    for page in _pages(events):
        found = [position for extra in page if (position := parse_position(extra.get(POSITION))) is not None]
        if found:
            return max(found, key=lambda position: position.number)
    return None


def _pages(events: InletEventsAccessor) -> Iterator[list[Mapping[str, object]]]:
    """Yields the extras of the events, newest first."""
    page = list(events.ascending(False).limit(_PAGE))
    while True:
        yield [event.extra or {} for event in page]
        # The next page begins with the events of that time once more.
        if len(page) < _PAGE or page[-1].timestamp == page[0].timestamp:
            return
        page = list(events.before(page[-1].timestamp.isoformat()))
