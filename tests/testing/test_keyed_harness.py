"""The harness for keyed functions: rows, time, side outputs, state, snapshots, errors.

`test_every_state.py` compares what functions compute with an oracle, for all kinds of state and backends.
"""

from __future__ import annotations

import datetime
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stateflow import (
    Context,
    DeadLetters,
    FsStateBackend,
    KeyedProcessFunction,
    MemoryStateBackend,
    OnTimerContext,
    OutputTag,
    RocksDBStateBackend,
    RuntimeContext,
    TimeDomain,
    ValueStateDescriptor,
)
from stateflow.api.state_backends import StateBackend
from stateflow.errors import (
    ConfigError,
    IncompatibleState,
    JobDefinitionError,
    SchemaMismatch,
    StateError,
    UserCodeError,
    WrongJobRoot,
)
from stateflow.runtime.task import store_cache
from stateflow.storage import open_storage
from stateflow.testing import KeyedHarness, KeyedInput, PendingTimer
from tests.support.errors import raises

MEMORY, FILES = MemoryStateBackend(), FsStateBackend(inline_below_bytes=1)
BACKENDS = [MEMORY, FILES, RocksDBStateBackend()]
EVENT_TIME, PROCESSING_TIME = TimeDomain.EVENT_TIME, TimeDomain.PROCESSING_TIME


class Payment(msgspec.Struct):
    user: str
    amount: int
    at: int = 0


class Total(msgspec.Struct):
    user: str
    total: int


LARGE = OutputTag("large", Payment)
PAYMENTS = KeyedInput(Payment, key_by="user")


class RunningTotal(KeyedProcessFunction[Payment, Total]):
    """A sum. Amounts from 100 go to a side output."""

    def open(self, ctx: RuntimeContext) -> None:
        self.total = ctx.get_state(ValueStateDescriptor("total", int))

    def process_element(self, row: Payment, ctx: Context) -> Iterable[Total]:
        if row.amount < 0:
            raise ValueError("below zero")
        if row.amount >= 100:
            ctx.output(LARGE, row)
        total = (self.total.value() or 0) + row.amount
        self.total.update(total)
        yield Total(row.user, total)


class Reminder(KeyedProcessFunction[Payment, Total]):
    def process_element(self, row: Payment, ctx: Context) -> None:
        ctx.timer_service().register_event_time_timer(row.at)
        ctx.timer_service().register_processing_time_timer(row.at + 1000)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterable[Total]:
        yield Total(f"{ctx.get_current_key()} {ctx.time_domain().value}", timestamp)


def harness(**more: Any) -> KeyedHarness:
    return KeyedHarness(RunningTotal(), PAYMENTS, output=Total, **more)


def reminders(**more: Any) -> KeyedHarness:
    return KeyedHarness(Reminder(), PAYMENTS, output=Total, **more)


def totals(rows: Iterable[Total]) -> list[int]:
    return [row.total for row in rows]


# -- rows ---------------------------------------------------------------------------------------------------------


def test_state_and_output_continue_from_push_to_push() -> None:
    with harness(parallelism=2, side_outputs=(LARGE,)) as h:
        assert h.push(Payment("ann", 3), Payment("ann", 4)) == [Total("ann", 3), Total("ann", 7)]
        assert h.push({"user": "bob", "amount": 100}) == [Total("bob", 100)]
        assert h.push(("ann", 1)) == [Total("ann", 8)]
        assert totals(h.output) == [3, 7, 100, 8]
        assert h.side_output(LARGE) == [Payment("bob", 100)]


@pytest.mark.parametrize(
    "row", [{"user": "ann"}, {"user": "ann", "amount": 1, "more": 2}, ("ann", "1"), Total("ann", 1), "ann"], ids=repr
)
def test_a_row_that_does_not_fit_its_class_is_refused_and_changes_nothing(row: Any) -> None:
    with harness() as h:
        h.push(("ann", 1))
        with raises(SchemaMismatch, row_class="Payment"):
            h.push(("ann", 1), row)
        assert h.push(("ann", 1)) == [Total("ann", 2)]


def test_rows_of_a_key_have_the_declared_order_within_a_push() -> None:
    with KeyedHarness(RunningTotal(), KeyedInput(Payment, "user", order_by=("at",)), output=Total) as h:
        assert h.push(("ann", 5, 2), ("ann", 3, 1)) == [Total("ann", 3), Total("ann", 8)]


def test_each_push_uses_a_new_copy_of_the_function() -> None:
    class Counting(RunningTotal):
        seen = 0

        def process_element(self, row: Payment, ctx: Context) -> Iterable[Total]:
            self.seen += 1
            yield Total(row.user, self.seen)

    function = Counting()
    with KeyedHarness(function, PAYMENTS, output=Total) as h:
        assert totals(h.push(("ann", 1), ("ann", 1)) + h.push(("ann", 1))) == [1, 2, 1]
    assert function.seen == 0


# -- time ---------------------------------------------------------------------------------------------------------


def test_timers_are_listed_and_fire_in_order_of_time_also_after_a_restore() -> None:
    with reminders(parallelism=2) as h:
        h.push(("ann", 0, 20), ("bob", 0, 10), ("ann", 0, 1 << 50))
        assert h.timers()[:2] == [PendingTimer(EVENT_TIME, 10, "bob"), PendingTimer(EVENT_TIME, 20, "ann")]
        assert [timer.domain for timer in h.timers()] == [EVENT_TIME] * 3 + [PROCESSING_TIME] * 3
        assert h.advance_watermark(9) == []
        timestamp = datetime.datetime.fromtimestamp(0.019, datetime.UTC)
        assert h.advance_watermark(timestamp) == [Total("bob event", 10)]
        assert h.advance_processing_time(1000) == []
        snapshot = h.snapshot()
    with KeyedHarness.restore(snapshot, parallelism=3) as h:
        assert (h.watermark, h.processing_time) == (19, 1000)
        assert sorted(totals(h.advance_processing_time(5000))) == [1010, 1020]
        assert h.advance_watermark(20) == [Total("ann event", 20)]
        assert h.drain() == [Total("ann event", 1 << 50)]
        assert h.watermark == 20 and len(h.timers()) == 1


@pytest.mark.parametrize(
    ("to", "facts"),
    [
        (4, {"present": 5, "given": 4}), ("5", {"given": "'5'"}), (True, {"given": "True"}),
        (1 << 62, {"given": 1 << 62}),
    ],
)  # fmt: skip
def test_an_earlier_or_invalid_time_is_refused(to: Any, facts: dict[str, Any]) -> None:
    with reminders() as h:
        h.advance_watermark(5)
        h.advance_processing_time(5)
        with raises(ConfigError, **facts):
            h.advance_watermark(to)
        with raises(ConfigError, **facts):
            h.advance_processing_time(to)
        assert h.watermark == h.processing_time == 5


@pytest.mark.parametrize(("column", "times"), [("at", [10, 11]), ("", [-1, -1])])
def test_event_time_is_the_declared_column(column: str, times: list[int]) -> None:
    class Timestamps(KeyedProcessFunction[Payment, Total]):
        def process_element(self, row: Payment, ctx: Context) -> Iterable[Total]:
            time = ctx.timestamp()
            yield Total("late" if time == ctx.timer_service().current_watermark() else "", time or -1)

    with KeyedHarness(Timestamps(), KeyedInput(Payment, "user", event_time=column), output=Total) as h:
        h.advance_watermark(10)
        seen = h.push(("ann", 0, 10), ("ann", 0, 11))
        assert totals(seen) == times
        assert [row.user for row in seen] == ["late" if column else "", ""]


# -- state and snapshots ------------------------------------------------------------------------------------------


def test_reading_state_changes_nothing() -> None:
    with harness() as h:
        h.push(("ann", 1))
        before = h.snapshot()
        assert (h.state("total", "ann"), h.state("total", "bob")) == (1, None)
        assert [entry.state for entry in h.state_entries()] == ["total"] and h.timers() == []
        assert h.snapshot() == before


def test_a_key_of_several_columns_is_a_tuple() -> None:
    with KeyedHarness(RunningTotal(), KeyedInput(Payment, ("user", "at")), output=Total) as h:
        h.push(("ann", 3, 1), ("ann", 4, 2))
        assert (h.state("total", ("ann", 1)), h.state("total", ("ann", 2))) == (3, 4)
        with raises(ConfigError, columns=["user", "at"], key="'ann'"):
            h.state("total", "ann")


def test_a_snapshot_does_not_change_and_can_be_restored_again() -> None:
    with harness() as h:
        h.push(("ann", 1))
        snapshot = h.snapshot()
        h.push(("ann", 10))
        for _ in range(2):
            with KeyedHarness.restore(snapshot) as restored:
                assert restored.output == []
                assert restored.push(("ann", 1)) == [Total("ann", 2)]
        assert h.push(("ann", 1)) == [Total("ann", 12)]


def test_a_new_version_of_a_function_reads_the_state_if_its_type_is_the_same() -> None:
    class Doubling(RunningTotal):
        value_type: type[object] = int

        def open(self, ctx: RuntimeContext) -> None:
            self.total: Any = ctx.get_state(ValueStateDescriptor("total", self.value_type))

        def process_element(self, row: Payment, ctx: Context) -> Iterable[Total]:
            yield Total(row.user, 2 * self.total.value())

    class Texts(Doubling):
        value_type = str

    with harness() as h:
        h.push(("ann", 7))
        snapshot = h.snapshot()
    with KeyedHarness.restore(snapshot, Doubling()) as h:
        assert h.push(("ann", 0)) == [Total("ann", 14)]
    with raises(IncompatibleState, name="total", stored="int", declared="str"):
        KeyedHarness.restore(snapshot, Texts())
    with raises(WrongJobRoot, found=128, wanted=64):
        KeyedHarness.restore(snapshot, max_parallelism=64)


def test_unreferenced_files_are_collected() -> None:
    with harness(backend=FILES) as h:
        for n in range(5):
            h.push(("ann", n))
        assert len(h.snapshot().files) == len(open_storage(h.root).list("")) == 1


# -- errors -------------------------------------------------------------------------------------------------------


def test_a_failed_batch_names_key_and_row_and_changes_nothing() -> None:
    with harness(side_outputs=(LARGE,)) as h:
        h.push(("ann", 1))
        row = Payment("ann", -5)
        with raises(UserCodeError, operator="RunningTotal", key="{'user': 'ann'}", row=repr(row)) as caught:
            h.push(("ann", 100), row)
        assert "process_element" in str(caught.value) and "ValueError: below zero" in str(caught.value)
        assert h.side_output(LARGE) == []
        assert h.push(("ann", 1)) == [Total("ann", 2)]
        assert len(h.output) == 2


class PartlyKnown(msgspec.Struct):
    user: str | None
    number: int | None
    amount: int = 1


class Ended(msgspec.Struct):
    user: str | None
    number: int | None
    total: int


class TotalAtTheEnd(KeyedProcessFunction[PartlyKnown, Ended]):
    """Adds amounts, and emits the sum of a key a second after its first row."""

    def open(self, ctx: RuntimeContext) -> None:
        self.total = ctx.get_state(ValueStateDescriptor("total", int))

    def process_element(self, row: PartlyKnown, ctx: Context) -> None:
        assert ctx.get_current_key() == (row.user, row.number)
        self.total.update((self.total.value() or 0) + row.amount)
        ctx.timer_service().register_event_time_timer(1_000)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterable[Ended]:
        user, number = ctx.get_current_key()
        yield Ended(user, number, self.total.value() or 0)
        self.total.clear()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_key_with_a_null_is_a_key_of_its_own(backend: StateBackend) -> None:
    """Keys that differ only in which part is null have the same hash, and stay apart through snapshots."""
    keys = [(None, None), ("", None), (None, 0), ("", 0), ("a", None), (None, 7)]
    given = KeyedInput(PartlyKnown, ("user", "number"))
    with KeyedHarness(TotalAtTheEnd(), given, output=Ended, backend=backend) as h:
        h.push(*((user, number, amount) for amount in (1, 10) for user, number in keys))
        h.push((None, None, 100))
        assert h.state("total", (None, 7)) == 11
        with KeyedHarness.restore(h.snapshot(), TotalAtTheEnd(), parallelism=3) as restored:
            assert {entry.key for entry in restored.state_entries()} == {*keys}
            assert {timer.key for timer in restored.timers()} == {*keys}
            restored.push(("", None, 1000))
            found = {(row.user, row.number): row.total for row in restored.advance_watermark(1_000)}
    assert found == dict.fromkeys(keys, 11) | {(None, None): 111, ("", None): 1011}


def test_rows_within_the_budget_become_dead_letters() -> None:
    with harness(on_error=DeadLetters(budget=1)) as h:
        h.push(("ann", 1), ("ann", -5), ("ann", 2))
        assert totals(h.output) == [1, 3]
        (letter,) = h.dead_letters
        assert "below zero" in letter.error and '"amount":-5' in letter.row
        with raises(UserCodeError, failed="2", budget="1"):
            h.push(("ann", -1), ("ann", -2))
        assert len(h.dead_letters) == 1


def test_more_state_than_the_memory_backend_may_hold_is_refused() -> None:
    with harness(backend=MemoryStateBackend(limit_bytes=200)) as h:
        with raises(ConfigError, uid="operator", limit_bytes="200"):
            h.push(*((f"user-{n}", 1) for n in range(50)))
        assert h.push(("ann", 1)) == [Total("ann", 1)]


@pytest.mark.parametrize(
    ("arguments", "more", "facts"),
    [
        ((RunningTotal, PAYMENTS), {}, {"given": repr(RunningTotal)}),
        ((RunningTotal(), PAYMENTS, PAYMENTS), {}, {"function": "RunningTotal", "given": ["KeyedInput", "KeyedInput"]}),
        ((RunningTotal(),), {}, {"function": "RunningTotal", "given": []}),
        ((RunningTotal(), Payment), {}, {"given": repr(Payment)}),
        ((RunningTotal(), KeyedInput(Payment, "usr")), {}, {"column": "usr", "called": "key_by"}),
        ((lambda rows: None, PAYMENTS), {"output": None}, {"given": "None"}),
        ((RunningTotal(), PAYMENTS), {"output": None}, {"function": "RunningTotal"}),
        ((RunningTotal(), PAYMENTS), {"backend": "rocksdb"}, {"given": "'rocksdb'"}),
        ((RunningTotal(), PAYMENTS), {"side_outputs": ["large"]}, {"given": "'large'"}),
        ((RunningTotal(), PAYMENTS), {"on_error": "skip"}, {"given": "'skip'"}),
    ],
)
def test_an_invalid_definition_is_refused(
    arguments: tuple[Any, ...], more: dict[str, Any], facts: dict[str, Any]
) -> None:
    with raises(JobDefinitionError, **facts):
        KeyedHarness(*arguments, **{"output": Total, **more})


def test_unknown_names_are_refused() -> None:
    with raises(ConfigError, name="paralelism"):
        harness(paralelism=2)
    with harness() as h:
        with raises(ConfigError, name="totl", declared=["total"]):
            h.state("totl", "ann")
        with raises(StateError, value=1, type="string"):
            h.state("total", 1)
        with raises(ConfigError, uid="other", known=["operator"]):
            h.state("total", "ann", uid="other")
        with raises(ConfigError, tag="large", collected=[]):
            h.side_output(LARGE)
        not_a_snapshot: Any = h
        with raises(ConfigError, given=repr(h)):
            KeyedHarness.restore(not_a_snapshot)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary folders."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_closed_harness_has_its_output_and_no_files_or_stores(scratch: Path) -> None:
    before = set(store_cache.open_stores())
    with harness(backend=RocksDBStateBackend()) as h:
        h.push(("ann", 1))
        opened = set(store_cache.open_stores()) - before
        assert opened and list(scratch.iterdir())
    assert h.output == [Total("ann", 1)]
    assert list(scratch.iterdir()) == []
    assert opened.isdisjoint(store_cache.open_stores())
    with raises(ConfigError):
        h.push(("ann", 1))
    with raises(ConfigError):
        h.state("total", "ann")


def test_a_harness_is_closed_when_its_object_is_deleted(scratch: Path) -> None:
    h = harness(backend=RocksDBStateBackend())
    h.push(("ann", 1))
    assert list(scratch.iterdir())
    del h
    assert list(scratch.iterdir()) == []
