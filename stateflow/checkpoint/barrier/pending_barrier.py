"""Collects the task reports of one barrier until it is complete. Pure: no storage, no clock."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from stateflow.checkpoint.barrier.task_report import TaskReport
from stateflow.checkpoint.log.documents import OperatorState, TimeSpan
from stateflow.errors import BatchFailed
from stateflow.state.handles import Committable


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
