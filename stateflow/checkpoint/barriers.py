"""Barriers: the report of a task, the completion of a barrier from all reports, and which barriers become checkpoints.

`CheckpointCoordinator` decides, `PendingBarrier` collects the `TaskReport`s. Pure: no storage, no clock.
"""

from __future__ import annotations

import base64
import enum
import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from stateflow import errors
from stateflow.checkpoint.log.documents import OperatorState, TimeSpan
from stateflow.config.settings import CheckpointSettings
from stateflow.errors import BatchFailed, StateflowError, UserCodeError, cut
from stateflow.state.handles import Committable, Document, OperatorPart, StateSchema, SubtaskState
from stateflow.types.decoders import msgpack_decoder

_REMEMBERED = 100
_RETRY_SECONDS = 10.0
"""Time between two attempts of an aborted checkpoint that no barrier follows, unless there is an interval."""


class Due(enum.Enum):
    """Why a barrier becomes a checkpoint."""

    INTERVAL = "the checkpoint interval has elapsed"
    REQUESTED = "a checkpoint was requested"


class NotDue(enum.Enum):
    """Why a barrier does not become a checkpoint; its state and output pass on to the next barrier."""

    INTERVAL = "the checkpoint interval has not elapsed"
    MINIMUM_PAUSE = "the minimum pause since the last checkpoint has not elapsed"
    TOO_MANY_PENDING = "max_in_flight reached"
    SHUT_DOWN = "the run is shutting down"


class CheckpointStatus(enum.Enum):
    """The status of a triggered checkpoint."""

    PENDING = "pending"
    COMPLETED = "completed"
    ABORTED = "aborted"


class ReportOutcome(enum.Enum):
    """The effect of a report that a checkpoint has ended."""

    ACCEPTED = "accepted"
    DUPLICATE = "the same end was reported before"
    LATE = "another end was reported before"
    UNKNOWN = "the checkpoint does not exist, or ended long ago"


@dataclass(frozen=True)
class _Ended:
    ordinal: int
    status: CheckpointStatus


class CheckpointCoordinator:
    """Counts barriers and time since the last checkpoint, and tracks pending checkpoints.

    Args:
        settings: intervals, pause and limits. With two intervals, the first to elapse counts; with none, every barrier
            becomes a checkpoint.
        began_at: when the run was restored, in seconds of a monotonic clock, as all timestamps of this class.
    """

    def __init__(self, settings: CheckpointSettings, began_at: float) -> None:
        self._settings = settings
        self._triggered_at = began_at
        self._completed_at: float | None = None
        self._barriers = 0
        self._pending: dict[int, float] = {}
        self._ended: deque[_Ended] = deque(maxlen=_REMEMBERED)
        self._failures = 0
        self._is_shut_down = False

    def at_barrier(self, ordinal: int, now: float, requested: bool = False) -> Due | NotDue:
        """Decides whether a barrier that all tasks have reached becomes a checkpoint, and triggers it if so.

        Args:
            ordinal: number of the barrier in the run.
            now: timestamp.
            requested: whether a checkpoint was requested; intervals, pause and pending checkpoints do not delay it.
        """
        self._barriers += 1
        verdict = self._verdict(now, requested)
        if isinstance(verdict, Due):
            self.record_trigger(ordinal, now)
        return verdict

    def is_due_when_idle(self, now: float) -> bool:
        """Returns whether the newest barrier becomes a checkpoint although no other barrier follows it.

        A number of batches would not be reached, so without an interval in time that is at once.
        """
        interval = self._settings.interval
        if interval is not None and not self._has_elapsed(interval.total_seconds(), now):
            return False
        has_room = len(self._pending) < self._settings.max_in_flight
        return has_room and not self._is_shut_down and not self._is_pausing(now)

    def may_retry(self, now: float) -> bool:
        """Returns whether an aborted checkpoint is attempted again although no barrier follows it."""
        interval = self._settings.interval
        return self._has_elapsed(interval.total_seconds() if interval else _RETRY_SECONDS, now)

    def record_trigger(self, ordinal: int, now: float) -> None:
        """Records a pending checkpoint; also called when a checkpoint is triggered after its barrier."""
        self._pending[ordinal] = self._triggered_at = now
        self._barriers = 0

    def record_completion(self, ordinal: int, now: float) -> ReportOutcome:
        """Records that a pending checkpoint was committed."""
        outcome = self._end(ordinal, CheckpointStatus.COMPLETED)
        if outcome is ReportOutcome.ACCEPTED:
            self._completed_at = now
            self._failures = 0
        return outcome

    def record_failure(self, ordinal: int) -> ReportOutcome:
        """Records that a pending checkpoint failed and will never exist."""
        outcome = self._end(ordinal, CheckpointStatus.ABORTED)
        if outcome is ReportOutcome.ACCEPTED:
            self._failures += 1
        return outcome

    def shut_down(self) -> None:
        """Makes every later barrier not due."""
        self._is_shut_down = True

    @property
    def pending(self) -> list[int]:
        """Ordinals of the checkpoints that have not ended, oldest first."""
        return list(self._pending)

    @property
    def has_failed_too_often(self) -> bool:
        """Whether more than `tolerable_failures` checkpoints have failed in a row."""
        return self._failures > self._settings.tolerable_failures

    def is_overdue(self, ordinal: int, now: float) -> bool:
        """Returns whether a pending checkpoint has exceeded the checkpoint timeout."""
        triggered = self._pending.get(ordinal)
        return triggered is not None and now - triggered >= self._settings.timeout.total_seconds()

    def _verdict(self, now: float, requested: bool) -> Due | NotDue:
        if self._is_shut_down:
            return NotDue.SHUT_DOWN
        if requested:
            return Due.REQUESTED
        if not self._is_interval_over(now):
            return NotDue.INTERVAL
        if self._is_pausing(now):
            return NotDue.MINIMUM_PAUSE
        return NotDue.TOO_MANY_PENDING if len(self._pending) >= self._settings.max_in_flight else Due.INTERVAL

    def _is_interval_over(self, now: float) -> bool:
        batches, time = self._settings.interval_batches, self._settings.interval
        if batches is None and time is None:
            return True
        return (batches is not None and self._barriers >= batches) or (
            time is not None and self._has_elapsed(time.total_seconds(), now)
        )

    def _has_elapsed(self, seconds: float, now: float) -> bool:
        return now - self._triggered_at >= seconds

    def _is_pausing(self, now: float) -> bool:
        pause = self._settings.min_pause
        if pause is None:
            return False
        since = now if self._pending else self._completed_at
        return since is not None and now - since < pause.total_seconds()

    def _end(self, ordinal: int, status: CheckpointStatus) -> ReportOutcome:
        if self._pending.pop(ordinal, None) is not None:
            self._ended.append(_Ended(ordinal, status))
            return ReportOutcome.ACCEPTED
        known = next((ended for ended in self._ended if ended.ordinal == ordinal), None)
        if known is None:
            return ReportOutcome.UNKNOWN
        return ReportOutcome.DUPLICATE if known.status is status else ReportOutcome.LATE


class Acknowledgement(enum.Enum):
    """The effect of a report on a pending barrier."""

    ACCEPTED = "accepted"
    DUPLICATE = "this subtask has reported the same attempt before"
    ANOTHER_ATTEMPT = "this subtask has reported another attempt before"
    OTHER_BARRIER = "the report is for another barrier"
    UNKNOWN = "the subtask does not take part"


@dataclass(frozen=True)
class Participant:
    """A subtask whose report is needed, and the upstream tasks that it must have received the barrier from."""

    uid: str
    subtask: int
    upstream: frozenset[tuple[str, int]] = frozenset()


@dataclass
class PendingBarrier:
    """A barrier that not all subtasks have reported yet.

    Args:
        generation: generation of the run.
        ordinal: number of the barrier in the run.
        participants: the subtasks whose reports complete it.
        reports: accepted reports, by uid and subtask.
        event_times: the latest event time of each source's rows in milliseconds, by uid, without sources without rows.
        rows_in: number of rows that the sources had.
    """

    generation: int
    ordinal: int
    participants: Iterable[Participant]
    reports: dict[tuple[str, int], TaskReport] = field(default_factory=dict)
    event_times: Mapping[str, int] = field(default_factory=dict)
    rows_in: int = 0

    def __post_init__(self) -> None:
        self._expected = {(p.uid, p.subtask): p for p in self.participants}

    def acknowledge(self, report: TaskReport) -> Acknowledgement:
        """Adds a report; returns whether it was accepted."""
        key = (report.uid, report.subtask)
        if (report.generation, report.ordinal) != (self.generation, self.ordinal):
            return Acknowledgement.OTHER_BARRIER
        if key not in self._expected:
            return Acknowledgement.UNKNOWN
        known = self.reports.get(key)
        if known is not None:
            same = known.attempt == report.attempt
            return Acknowledgement.DUPLICATE if same else Acknowledgement.ANOTHER_ATTEMPT
        self.reports[key] = report
        return Acknowledgement.ACCEPTED

    @property
    def missing(self) -> list[tuple[str, int]]:
        """Subtasks that have not reported."""
        return sorted(self._expected.keys() - self.reports.keys())

    def check(self) -> None:
        """Raises the first failure that a task reported, or BatchFailed when the barrier is not complete."""
        for report in self.reports.values():
            if report.failure is not None:
                raise report.failure.to_error()
        if self.missing:
            raise BatchFailed("not every subtask reported", missing=self.missing[:10])
        for key, participant in self._expected.items():
            self._check_attempts(participant, self.reports[key])

    def _check_attempts(self, participant: Participant, report: TaskReport) -> None:
        """Raises BatchFailed unless all tasks consumed the reported attempts.

        A task that ran twice may have sent rows of its first attempt to some readers and of its second to others, which
        together are not one output.
        """
        consumed = {(c.uid, c.subtask): c.attempt for c in report.consumed}
        if consumed.keys() != participant.upstream:
            raise BatchFailed(
                "a task did not receive the barrier from every upstream task",
                uid=report.uid,
                subtask=report.subtask,
                missing=sorted(participant.upstream - consumed.keys()),
            )
        for upstream, attempt in consumed.items():
            if self.reports[upstream].attempt != attempt:
                raise BatchFailed(
                    "tasks consumed different attempts of an upstream task",
                    uid=report.uid,
                    subtask=report.subtask,
                    upstream=upstream,
                    consumed=attempt,
                    reported=self.reports[upstream].attempt,
                )

    def operators(self, base: Iterable[OperatorState]) -> list[OperatorState]:
        """Returns the state of every keyed operator, for the manifest.

        Args:
            base: the operators of the previous checkpoint, for schemas: a subtask without rows does not open its store,
                so it reports no schemas.
        """
        known = {o.uid: o for o in base}
        found: dict[str, list[TaskReport]] = {}
        for (uid, _), report in sorted(self.reports.items()):
            if report.key_types:
                found.setdefault(uid, []).append(report)
        return [_operator(uid, reports, known.get(uid)) for uid, reports in found.items()]

    def ahead(self) -> dict[tuple[str, str], list[TimeSpan]]:
        """Returns the event times of rows above the watermark, by uid of the operator and input."""
        found: dict[tuple[str, str], list[TimeSpan]] = {}
        for (uid, _), report in sorted(self.reports.items()):
            for name, spans in report.ahead.items():
                found.setdefault((uid, name), []).extend(spans)
        return found

    def output(self) -> dict[str, list[Committable]]:
        """Returns the files to publish, by sink, without sinks that have none."""
        result: dict[str, list[Committable]] = {}
        for _, report in sorted(self.reports.items()):
            for sink, committables in report.output.items():
                if committables:
                    result.setdefault(sink, []).extend(committables)
        return result


def _operator(uid: str, reports: list[TaskReport], base: OperatorState | None) -> OperatorState:
    states = {schema.name: schema for schema in base.states} if base else {}
    states |= {schema.name: schema for report in reports for schema in report.states}
    others = {schema.name: schema for schema in base.operator_states} if base else {}
    others |= {schema.name: schema for report in reports for schema in report.operator_states}
    return OperatorState(
        uid=uid,
        parallelism=len(reports),
        key_types=reports[0].key_types,
        key_names=reports[0].key_names,
        states=[states[name] for name in sorted(states)],
        subtasks=[r.state for r in reports if r.state],
        operator_states=[others[name] for name in sorted(others)],
        parts=[r.part for r in reports if r.part],
    )


_ERROR_MARK = re.compile(r"\[stateflow-failure:([A-Za-z0-9+/=]+)\]")


class Failure(Document, frozen=True, kw_only=True):
    """An error of a task that running the task again cannot fix."""

    kind: str
    message: str
    hint: str
    facts: dict[str, str]

    @classmethod
    def of(cls, error: StateflowError) -> Failure:
        """Returns the failure that describes `error`."""
        facts = {key: value if isinstance(value, str) else cut(repr(value)) for key, value in error.facts.items()}
        return cls(kind=type(error).__name__, message=error.message, hint=error.hint, facts=facts)

    def to_error(self) -> StateflowError:
        """Returns the error that the failure describes."""
        kind = getattr(errors, self.kind, None)
        if not (isinstance(kind, type) and issubclass(kind, StateflowError)):
            kind = UserCodeError
        return kind(self.message, hint=self.hint, **self.facts)


def message_with(error: StateflowError) -> str:
    """Returns a message that contains an error, for functions in Spark, which forwards only messages."""
    data = base64.b64encode(msgspec.msgpack.encode(Failure.of(error))).decode()
    return f"{error} [stateflow-failure:{data}]"


def error_in_text(text: str) -> StateflowError | None:
    """Returns the error that `message_with` encoded in the message of a failed query; None without one."""
    found = _ERROR_MARK.search(text)
    if found is None:
        return None
    try:
        return msgpack_decoder(Failure).decode(base64.b64decode(found[1])).to_error()
    except (msgspec.DecodeError, ValueError):
        return None


class Consumed(Document, frozen=True, kw_only=True):
    """The attempt of an upstream task whose rows a task consumed."""

    uid: str
    subtask: int
    attempt: str


class TaskUsage(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """What a subtask has used in a batch, and rows that its report does not have; without names, to keep it small."""

    rows_filtered: int = 0
    """Rows that functions of `filter` after the operator have dropped."""
    rows_late: int = 0
    """Rows whose event time was not after the watermark, whether they were dropped or not."""
    function_s: float = 0.0
    """Time in the functions of the job, with reading and writing values for a function of rows."""
    state_s: float = 0.0
    """Time of encoding keys, and of reading and writing state for many keys at once."""
    store_s: float = 0.0
    """Time in the store of the backend, with its snapshot."""
    cpu_s: float = 0.0
    """CPU time of the process during the task."""
    requests: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    """Requests of the process to the storage of the job root during the task, and their bytes."""


class TaskReport(Document, frozen=True, kw_only=True):
    """One subtask's part of a checkpoint, or its failure."""

    generation: int
    ordinal: int
    uid: str
    subtask: int
    attempt: str
    consumed: list[Consumed] = []
    key_types: list[str] = []
    key_names: list[str] = []
    states: list[StateSchema] = []
    state: SubtaskState | None = None
    """None for an operator without state, and for a subtask that never received a row."""
    operator_states: list[StateSchema] = []
    part: OperatorPart | None = None
    """Operator state; None without any."""
    output: dict[str, list[Committable]] = {}
    rows_in: int = 0
    rows_out: int = 0
    increment_bytes: int = 0
    compaction_bytes: int = 0
    dead_letters: int = 0
    last_dead_letter: Failure | None = None
    """The error of the last dead letter."""
    late_rows_dropped: int = 0
    """Number of rows that the operator dropped because they were too late."""
    ahead: dict[str, list[TimeSpan]] = {}
    """The event times of rows above the watermark, by `WaitingRows.inputs`, as a text."""
    hot_keys: dict[str, int] = {}
    """For keys with many, the number of pairs of rows that a join has compared."""
    barrier_at: datetime | None = None
    """When the subtask had processed its input."""
    sync_ms: float = 0.0
    """Duration of the synchronous part of its snapshot."""
    usage: TaskUsage = TaskUsage()
    failure: Failure | None = None
    carried: list[TaskReport] = []
    """Reports of upstream tasks, which this report forwards to the driver."""


def combine_spans(spans: Iterable[TimeSpan], limit: int) -> list[TimeSpan]:
    """Returns spans in order; as many neighbours become one as are needed to have at most `limit`."""
    ordered = sorted(spans, key=lambda span: (span.first, span.last))
    size = -(-len(ordered) // limit) or 1
    parts = [ordered[at : at + size] for at in range(0, len(ordered), size)]
    return [
        TimeSpan(first=part[0].first, last=max(s.last for s in part), rows=sum(s.rows for s in part)) for part in parts
    ]
