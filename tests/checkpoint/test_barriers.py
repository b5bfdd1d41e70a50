"""Barriers: which become checkpoints, what each report does, and when a checkpoint is complete."""

from __future__ import annotations

from datetime import timedelta
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.checkpoint.barriers import (
    Acknowledgement,
    CheckpointCoordinator,
    Consumed,
    Due,
    Failure,
    NotDue,
    Participant,
    PendingBarrier,
    ReportOutcome,
    TaskReport,
)
from stateflow.checkpoint.log.documents import OperatorState
from stateflow.config.settings import CheckpointSettings
from stateflow.errors import BatchFailed, SchemaMismatch, UserCodeError
from stateflow.state.handles import Committable, StateSchema, SubtaskState
from stateflow.state.schema import type_schema
from tests.support.errors import raises

SECOND = timedelta(seconds=1)


def _coordinator(**settings: Any) -> CheckpointCoordinator:
    return CheckpointCoordinator(CheckpointSettings(**settings), 0.0)


def _verdicts(coordinator: CheckpointCoordinator, barriers: list[float]) -> list[Due | NotDue]:
    """Returns the verdicts on barriers at these times when each checkpoint is completed at once."""
    found = []
    for ordinal, now in enumerate(barriers, 1):
        verdict = coordinator.at_barrier(ordinal, now)
        if isinstance(verdict, Due):
            assert coordinator.record_completion(ordinal, now) is ReportOutcome.ACCEPTED
        found.append(verdict)
    return found


def test_a_pause_begins_when_a_checkpoint_is_completed() -> None:
    coordinator = _coordinator(min_pause=10 * SECOND, max_in_flight=2)
    assert coordinator.at_barrier(1, 1) is Due.INTERVAL
    assert coordinator.at_barrier(2, 100) is NotDue.MINIMUM_PAUSE
    coordinator.record_completion(1, 101)
    assert coordinator.at_barrier(3, 110) is NotDue.MINIMUM_PAUSE
    assert coordinator.at_barrier(4, 111) is Due.INTERVAL


def test_a_requested_checkpoint_waits_for_neither_interval_nor_pause() -> None:
    coordinator = _coordinator(interval=100 * SECOND, min_pause=100 * SECOND)
    assert coordinator.at_barrier(1, 1, requested=True) is Due.REQUESTED
    coordinator.record_completion(1, 1)
    assert coordinator.at_barrier(2, 2) is NotDue.INTERVAL
    assert coordinator.at_barrier(3, 3, requested=True) is Due.REQUESTED
    coordinator.shut_down()
    assert coordinator.at_barrier(4, 4, requested=True) is NotDue.SHUT_DOWN


def test_at_most_max_in_flight_checkpoints_are_pending_in_addition_to_requested_ones() -> None:
    coordinator = _coordinator(max_in_flight=2)
    assert [coordinator.at_barrier(n, n) for n in (1, 2, 3)] == [Due.INTERVAL, Due.INTERVAL, NotDue.TOO_MANY_PENDING]
    assert coordinator.at_barrier(4, 4, requested=True) is Due.REQUESTED
    assert coordinator.pending == [1, 2, 4]
    coordinator.record_completion(1, 5)
    coordinator.record_completion(2, 5)
    assert coordinator.at_barrier(5, 5) is Due.INTERVAL


def test_the_end_of_a_checkpoint_is_accepted_once() -> None:
    coordinator = _coordinator()
    for ordinal in (1, 2):
        coordinator.record_trigger(ordinal, 1)
    assert coordinator.record_completion(1, 2) is ReportOutcome.ACCEPTED
    assert coordinator.record_completion(1, 2) is ReportOutcome.DUPLICATE
    assert coordinator.record_failure(1) is ReportOutcome.LATE
    assert coordinator.record_failure(2) is ReportOutcome.ACCEPTED
    assert coordinator.record_failure(2) is ReportOutcome.DUPLICATE
    assert coordinator.record_completion(2, 2) is ReportOutcome.LATE
    assert coordinator.record_completion(3, 2) is ReportOutcome.UNKNOWN
    assert coordinator.pending == []


def test_a_pending_checkpoint_is_overdue_after_its_timeout() -> None:
    coordinator = _coordinator(timeout=60 * SECOND)
    coordinator.at_barrier(1, 10)
    assert [coordinator.is_overdue(1, now) for now in (10, 69.9, 70)] == [False, False, True]
    coordinator.record_failure(1)
    assert not coordinator.is_overdue(1, 100)


@pytest.mark.parametrize("tolerable", [0, 1, 3])
def test_more_failures_in_a_row_than_are_tolerable_are_too_many(tolerable: int) -> None:
    coordinator = _coordinator(tolerable_failures=tolerable)
    for ordinal in range(1, 20):
        coordinator.at_barrier(ordinal, ordinal)
        if ordinal == 10:
            coordinator.record_completion(ordinal, ordinal)
        else:
            coordinator.record_failure(ordinal)
        assert coordinator.has_failed_too_often == ((ordinal if ordinal < 10 else ordinal - 10) > tolerable)


@given(
    gaps=st.lists(st.floats(0, 20) | st.sampled_from([0, 1, 5, 10]), max_size=40),
    batches=st.none() | st.integers(1, 5),
    interval=st.none() | st.integers(1, 30),
    pause=st.none() | st.integers(1, 30),
)
def test_a_checkpoint_is_due_exactly_when_interval_and_pause_are_over(
    gaps: list[float], batches: int | None, interval: int | None, pause: int | None
) -> None:
    times = list(accumulate(gaps))
    durations = {"interval": interval and interval * SECOND, "min_pause": pause and pause * SECOND}
    last, since, paused = 0.0, 0, None
    for now, verdict in zip(times, _verdicts(_coordinator(interval_batches=batches, **durations), times), strict=True):
        since += 1
        over = (batches is None and interval is None) or (batches is not None and since >= batches)
        over = over or (interval is not None and now - last >= interval)
        free = pause is None or paused is None or now - paused >= pause
        assert verdict is (NotDue.INTERVAL if not over else Due.INTERVAL if free else NotDue.MINIMUM_PAUSE)
        if verdict is Due.INTERVAL:
            last, since, paused = now, 0, now


GENERATION, ORDINAL = 7, 3
FIRST = [Participant("op", 0), Participant("op", 1)]
TWO_LEVELS = [*FIRST, Participant("sink", 0, frozenset({("op", 0), ("op", 1)}))]


def _report(uid: str = "op", subtask: int = 0, attempt: str = "a", **more: Any) -> TaskReport:
    ids = {"generation": GENERATION, "ordinal": ORDINAL, "uid": uid, "subtask": subtask, "attempt": attempt}
    return TaskReport(**{**ids, **more})


def _sink_report(*consumed: tuple[int, str]) -> TaskReport:
    return _report("sink", consumed=[Consumed(uid="op", subtask=s, attempt=attempt) for s, attempt in consumed])


def _pending(participants: list[Participant], *reports: TaskReport) -> PendingBarrier:
    pending = PendingBarrier(GENERATION, ORDINAL, participants)
    for report in reports:
        assert pending.acknowledge(report) is Acknowledgement.ACCEPTED
    return pending


VERDICTS = [
    (_report(subtask=1), Acknowledgement.ACCEPTED),
    (_report(), Acknowledgement.DUPLICATE),
    (_report(attempt="b"), Acknowledgement.ANOTHER_ATTEMPT),
    (_report(subtask=1, ordinal=ORDINAL - 1), Acknowledgement.OTHER_BARRIER),
    (_report(subtask=1, ordinal=ORDINAL + 1), Acknowledgement.OTHER_BARRIER),
    (_report(subtask=1, generation=GENERATION - 1), Acknowledgement.OTHER_BARRIER),
    # Which barrier it is for comes first: another plan may have had other subtasks.
    (_report(uid="gone", ordinal=1), Acknowledgement.OTHER_BARRIER),
    (_report(subtask=2), Acknowledgement.UNKNOWN),
    (_report(uid="other"), Acknowledgement.UNKNOWN),
]


@pytest.mark.parametrize(("report", "verdict"), VERDICTS)
def test_only_an_accepted_report_counts(report: TaskReport, verdict: Acknowledgement) -> None:
    pending = _pending(FIRST, _report())
    assert pending.acknowledge(report) is verdict
    accepted = {("op", 1): report} if verdict is Acknowledgement.ACCEPTED else {}
    assert pending.reports == {("op", 0): _report(), **accepted}
    assert {each for _, each in VERDICTS} == set(Acknowledgement)


def test_a_checkpoint_is_complete_when_every_subtask_has_reported() -> None:
    pending = _pending(FIRST, _report())
    assert pending.missing == [("op", 1)]
    with raises(BatchFailed) as failed:
        pending.check()
    assert failed.value.facts == {"missing": [("op", 1)]}
    pending.acknowledge(_report(subtask=1))
    assert pending.missing == []
    pending.check()
    with raises(BatchFailed, missing=[("op", n) for n in range(10)]):
        _pending([Participant("op", n) for n in range(100)]).check()


def test_the_first_failure_is_raised_before_missing_reports() -> None:
    error = UserCodeError("process_element of an operator raised KeyError: 'x'", hint="fix it", operator="op", row=7)
    later = Failure.of(SchemaMismatch("later"))
    with raises(UserCodeError, operator="op", row="7") as failed:
        _pending(TWO_LEVELS, _report(subtask=1, failure=Failure.of(error)), _report(failure=later)).check()
    assert (failed.value.message, failed.value.hint) == (error.message, error.hint)


@pytest.mark.parametrize("kind", ["SystemExit", "no_such", "Any", "StateflowErro"])
def test_a_failure_of_an_unknown_kind_is_the_user_s(kind: str) -> None:
    assert type(Failure(kind=kind, message="m", hint="", facts={}).to_error()) is UserCodeError


@pytest.mark.parametrize(
    ("consumed", "refused"),
    [
        ([(0, "a1"), (1, "a2")], None),
        ([(0, "a0"), (1, "a2")], {"upstream": ("op", 0), "consumed": "a0", "reported": "a1"}),
        ([], {"missing": [("op", 0), ("op", 1)]}),
        ([(0, "a1")], {"missing": [("op", 1)]}),
        ([(0, "a1"), (1, "a2"), (2, "a")], {"missing": []}),
    ],
    ids=["agrees", "another-attempt", "none", "one", "one-too-many"],
)
def test_a_task_must_have_consumed_exactly_the_attempts_that_reported(
    consumed: list[tuple[int, str]], refused: dict[str, Any] | None
) -> None:
    reports = [_report(attempt="a1"), _report(subtask=1, attempt="a2"), _sink_report(*consumed)]
    pending = _pending(TWO_LEVELS, *reports)
    if refused is None:
        pending.check()
    else:
        with raises(BatchFailed, uid="sink", subtask=0, **refused):
            pending.check()


def _operator(states: list[str], subtasks: list[int], uid: str = "op") -> OperatorState:
    states_of = [StateSchema(name=name, kind="value", value_type="int", type=type_schema(int)) for name in states]
    keyed = [SubtaskState(subtask=n, first_group=64 * n, last_group=64 * n + 63, snapshot=f"s{n}") for n in subtasks]
    return OperatorState(
        uid=uid, parallelism=2, key_types=["string"], key_names=["key"], states=states_of, subtasks=keyed
    )


def _state_report(subtask: int, states: list[str], *, has_state: bool = True) -> TaskReport:
    operator = _operator(states, [subtask])
    state = operator.subtasks[0] if has_state else None
    return _report(subtask=subtask, key_types=["string"], key_names=["key"], states=operator.states, state=state)


def test_an_operator_has_the_states_of_all_its_subtasks_in_order() -> None:
    pending = _pending(FIRST, _state_report(1, ["b"]), _state_report(0, ["a"]))
    assert pending.operators([]) == [_operator(["a", "b"], [0, 1])]


def test_states_without_rows_are_taken_from_the_base() -> None:
    pending = _pending(FIRST, _state_report(0, []), _state_report(1, [], has_state=False))
    assert pending.operators([_operator(["old"], []), _operator([], [], "gone")]) == [_operator(["old"], [0])]


def test_a_sink_without_operator_has_no_state_and_output_is_in_the_order_of_subtasks() -> None:
    files = {n: Committable(path=f"f{n}", size=1, rows=n) for n in range(3)}
    second, first = {"x": [files[1]], "empty": []}, {"x": [files[0]], "y": [files[2]]}
    pending = _pending(FIRST, _report(subtask=1, output=second), _report(output=first))
    assert pending.operators([]) == []
    assert pending.output() == {"x": [files[0], files[1]], "y": [files[2]]}
