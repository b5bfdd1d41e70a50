"""The result of a launch, and that of a launch with nothing to do."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from stateflow.observability.exporters import telemetry
from stateflow.observability.logging import log_event
from stateflow.runtime.idle import find_idle
from stateflow.runtime.job.job import HotKey
from stateflow.runtime.preflight import StartContext
from stateflow.runtime.watermarks import Waiting, waiting_for_others

IDLE = "idle"
"""`RunResult.stopped_because` of a start that had nothing to do."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunResult:
    """The outcome of a launch: the sums over its first run and its restarts.

    Attributes:
        generation: generation of the last run.
        started_from: checkpoint that the run continued from; 0 for a new job or one that began with a savepoint.
        started_at: the same as text, such as ``savepoint before-upgrade (checkpoint 7)``.
        batches, rows_in, rows_out: sums over all runs; rows out by uid of the sink.
        offsets: positions of the sources at the end, by uid.
        stopped_because: which end condition was met.
        duration_s: wall-clock seconds.
        restarts: number of restarts by the restart strategy.
        quarantined_count: number of corrupt input files that the run skipped.
        quarantined: the newest of them, each with ``source``, ``file`` and ``error``.
        late_rows_dropped: number of rows that operators dropped because they were too late.
        hot_keys: of each join that has compared millions of pairs of rows of one key in a batch, the key with most;
            see `HotKey`.
        waiting: rows that wait for rows of other sources, by operator and input; see `Waiting`.
        idle: whether there was nothing to do, so that Spark was not started and the job root was not changed. Then
            `generation` is that of the last run.
    """

    job: str
    job_uuid: str
    generation: int
    started_from: int
    started_at: str
    checkpoint_id: int
    batches: int
    rows_in: int
    rows_out: dict[str, int]
    offsets: dict[str, str]
    stopped_because: str
    duration_s: float
    restarts: int = 0
    quarantined_count: int = 0
    quarantined: list[dict[str, str]] = field(default_factory=list)
    late_rows_dropped: int = 0
    hot_keys: tuple[HotKey, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    idle: bool = False


def idle_result(start: StartContext, began: float) -> RunResult | None:
    """Returns the result of an idle start, and counts it; None for any other start.

    Args:
        began: when the launch began, by the monotonic clock.
    """
    if not start.on_spark:
        return None
    found = find_idle(start)
    if isinstance(found, str):
        log_event(_log, logging.INFO, "not_idle", text=f"Spark is needed: {found}", reason=found)
        return None
    with telemetry(start.settings.telemetry, start.settings.name) as recorder:
        recorder.count("num_idle_starts")
    head, root = found.head, found.job.root
    manifest = root.checkpoints.manifest_at(head)
    return RunResult(
        job=root.job.job,
        job_uuid=root.job.job_uuid,
        generation=head.entry.generation,
        started_from=head.checkpoint_id,
        started_at=head.checkpoint_label,
        checkpoint_id=head.checkpoint_id,
        batches=0,
        rows_in=0,
        rows_out={},
        offsets={position.uid: position.offset for position in head.entry.sources},
        stopped_because=IDLE,
        duration_s=round(start.clock.monotonic() - began, 3),
        waiting=waiting_for_others(manifest.waiting if manifest else ()),
        idle=True,
    )
