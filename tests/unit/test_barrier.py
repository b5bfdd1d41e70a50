"""One barrier's reports: what each does, and when a checkpoint is whole."""

from __future__ import annotations

from typing import Any

import pytest

from stateflow.checkpoint.barrier.pending_barrier import Acknowledgement, Participant, PendingBarrier
from stateflow.checkpoint.barrier.task_report import Consumed, Failure, TaskReport
from stateflow.checkpoint.log.documents import OperatorState
from stateflow.errors import BatchFailed, SchemaMismatch, UserCodeError
from stateflow.state.handles import Committable, StateSchema, SubtaskState
from tests.support.errors import raises

GENERATION, ORDINAL = 7, 3
FIRST = [Participant("op", 0), Participant("op", 1)]
BEFORE = frozenset({("op", 0), ("op", 1)})
TWO_LEVELS = [*FIRST, Participant("sink", 0, BEFORE)]


def _report(uid: str = "op", subtask: int = 0, attempt: str = "a", **more: Any) -> TaskReport:
    return TaskReport(
        **{"generation": GENERATION, "ordinal": ORDINAL, "uid": uid, "subtask": subtask, "attempt": attempt, **more}
    )


def _heard(*attempts: tuple[int, str]) -> list[Consumed]:
    return [Consumed(uid="op", subtask=subtask, attempt=attempt) for subtask, attempt in attempts]


def _pending(participants: list[Participant] = FIRST, *reports: TaskReport) -> PendingBarrier:
    pending = PendingBarrier(GENERATION, ORDINAL, participants)
    for report in reports:
        assert pending.acknowledge(report) is Acknowledgement.ACCEPTED
    return pending


# -- acknowledgements ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("report", "verdict"),
    [
        (_report(subtask=1), Acknowledgement.ACCEPTED),
        (_report(), Acknowledgement.DUPLICATE),
        (_report(attempt="b"), Acknowledgement.ANOTHER_ATTEMPT),
        (_report(subtask=1, ordinal=ORDINAL - 1), Acknowledgement.LATE),
        (_report(subtask=1, ordinal=ORDINAL + 1), Acknowledgement.LATE),
        (_report(subtask=1, generation=GENERATION - 1), Acknowledgement.LATE),
        (_report(subtask=2), Acknowledgement.UNKNOWN),
        (_report(uid="other"), Acknowledgement.UNKNOWN),
    ],
)
def test_a_report_gets_a_verdict(report: TaskReport, verdict: Acknowledgement) -> None:
    pending = _pending(FIRST, _report())
    assert pending.acknowledge(report) is verdict
    known = {("op", 0): _report()} | ({("op", 1): report} if verdict is Acknowledgement.ACCEPTED else {})
    assert pending.reports == known


def test_every_verdict_is_tested_above() -> None:
    assert len(Acknowledgement) == 5


def test_a_late_report_of_an_unknown_subtask_is_late() -> None:
    """Which barrier it is for comes first: another plan may have had other subtasks."""
    assert _pending().acknowledge(_report(uid="gone", ordinal=1)) is Acknowledgement.LATE


# -- whole or not -------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_whole_when_all_have_reported() -> None:
    pending = _pending(FIRST, _report())
    assert pending.missing == [("op", 1)]
    with raises(BatchFailed) as failed:
        pending.check()
    assert failed.value.facts == {"missing": [("op", 1)]}
    pending.acknowledge(_report(subtask=1))
    assert pending.missing == []
    pending.check()


def test_of_many_missing_subtasks_some_are_named() -> None:
    pending = _pending([Participant("op", n) for n in range(100)])
    with raises(BatchFailed, missing=[("op", n) for n in range(10)]):
        pending.check()


def test_a_failure_comes_before_what_is_missing_because_of_it() -> None:
    error = UserCodeError("process_element of an operator raised KeyError: 'x'", hint="mend it", operator="op", row=7)
    pending = _pending(TWO_LEVELS, _report(failure=Failure.of(error)))
    with raises(UserCodeError, operator="op", row="7") as failed:
        pending.check()
    assert (failed.value.message, failed.value.hint) == (error.message, error.hint)


def test_of_several_failures_the_first_is_raised() -> None:
    pending = _pending(
        FIRST,
        _report(subtask=1, failure=Failure.of(SchemaMismatch("first"))),
        _report(failure=Failure.of(UserCodeError("second"))),
    )
    with raises(SchemaMismatch):
        pending.check()


def test_a_failure_of_an_unknown_kind_is_the_user_s() -> None:
    for kind in ("SystemExit", "no_such", "Any", "StateflowErro"):
        error = Failure(kind=kind, message="m", hint="", facts={}).to_error()
        assert type(error) is UserCodeError


# -- attempts -----------------------------------------------------------------------------------------------------


def test_attempts_that_agree_are_one_output() -> None:
    _pending(
        TWO_LEVELS,
        _report(attempt="a1"),
        _report(subtask=1, attempt="a2"),
        _report("sink", consumed=_heard((0, "a1"), (1, "a2"))),
    ).check()


def test_rows_of_an_attempt_that_did_not_report_are_refused() -> None:
    pending = _pending(
        TWO_LEVELS,
        _report(attempt="a1"),
        _report(subtask=1, attempt="a2"),
        _report("sink", consumed=_heard((0, "a0"), (1, "a2"))),
    )
    with raises(BatchFailed, uid="sink", subtask=0, upstream=("op", 0), consumed="a0", reported="a1"):
        pending.check()


@pytest.mark.parametrize(
    ("heard", "missing"),
    [([], [("op", 0), ("op", 1)]), (_heard((0, "a")), [("op", 1)]), (_heard((0, "a"), (1, "a"), (2, "a")), [])],
)
def test_a_task_must_have_heard_exactly_those_before_it(heard: list[Consumed], missing: list[Any]) -> None:
    pending = _pending(TWO_LEVELS, _report(), _report(subtask=1), _report("sink", consumed=heard))
    with raises(BatchFailed, uid="sink", subtask=0, missing=missing):
        pending.check()


def test_a_task_of_the_first_level_must_hear_none() -> None:
    with raises(BatchFailed, uid="op", subtask=0, missing=[]):
        _pending(FIRST, _report(consumed=_heard((1, "a"))), _report(subtask=1)).check()


# -- what a whole checkpoint consists of --------------------------------------------------------------------------


def _state(subtask: int) -> SubtaskState:
    return SubtaskState(subtask=subtask, first_group=subtask * 64, last_group=subtask * 64 + 63, snapshot=f"s{subtask}")


def _schema(name: str) -> StateSchema:
    return StateSchema(name=name, kind="value", value_type="int")


def test_operators_with_the_state_of_their_subtasks() -> None:
    pending = _pending(
        FIRST,
        _report(subtask=1, key_types=["string"], states=[_schema("b")], state=_state(1)),
        _report(key_types=["string"], states=[_schema("a")], state=_state(0)),
    )
    (found,) = pending.operators([])
    assert found == OperatorState(
        uid="op",
        parallelism=2,
        key_types=["string"],
        states=[_schema("a"), _schema("b")],
        subtasks=[_state(0), _state(1)],
    )


def test_a_subtask_without_rows_keeps_what_the_base_knew_of_its_states() -> None:
    pending = _pending(FIRST, _report(key_types=["string"], state=_state(0)), _report(subtask=1, key_types=["string"]))
    base = [
        OperatorState(uid="op", parallelism=2, key_types=["string"], states=[_schema("old")], subtasks=[]),
        OperatorState(uid="gone", parallelism=2, key_types=["string"], states=[], subtasks=[]),
    ]
    (found,) = pending.operators(base)
    assert found.states == [_schema("old")]
    assert found.subtasks == [_state(0)]


def test_a_sink_of_its_own_is_no_operator() -> None:
    pending = _pending(FIRST, _report(), _report(subtask=1))
    assert pending.operators([]) == []


def test_output_is_collected_by_sink_in_order_of_subtasks() -> None:
    files = {n: Committable(path=f"f{n}", size=1, rows=n) for n in range(3)}
    pending = _pending(
        FIRST,
        _report(subtask=1, output={"x": [files[1]], "empty": []}),
        _report(output={"x": [files[0]], "y": [files[2]]}),
    )
    assert pending.output() == {"x": [files[0], files[1]], "y": [files[2]]}
