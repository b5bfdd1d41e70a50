"""The harness for keyed functions: rows, time, side outputs, state, snapshots, errors."""

from __future__ import annotations

import datetime
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stateflow import (
    AggregateFunction,
    AggregatingStateDescriptor,
    Context,
    DeadLetters,
    FsStateBackend,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    MemoryStateBackend,
    OnTimerContext,
    OutputTag,
    ReducingStateDescriptor,
    RocksDBStateBackend,
    RuntimeContext,
    StateTtlConfig,
    Time,
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
from stateflow.testing import HarnessSnapshot, KeyedHarness, KeyedInput, PendingTimer
from tests.support.errors import raises

BACKENDS = [MemoryStateBackend(), FsStateBackend(inline_below_bytes=1), RocksDBStateBackend()]


class Payment(msgspec.Struct):
    user: str
    amount: int
    at: int = 0


class Total(msgspec.Struct):
    user: str
    total: int


LARGE = OutputTag("large", Payment)


class RunningTotal(KeyedProcessFunction[Payment, Total]):
    """A sum; amounts from 100 up go aside."""

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


PAYMENTS = KeyedInput(Payment, key_by="user")


def harness(**more: Any) -> KeyedHarness:
    return KeyedHarness(RunningTotal(), PAYMENTS, output=Total, **more)


# -- rows ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: type(b).__name__)
def test_state_goes_on_from_push_to_push(backend: StateBackend) -> None:
    with harness(backend=backend, parallelism=2) as h:
        assert h.push(Payment("ann", 3), Payment("ann", 4)) == [Total("ann", 3), Total("ann", 7)]
        assert h.push(Payment("bob", 1)) == [Total("bob", 1)]
        assert h.push(Payment("ann", 1)) == [Total("ann", 8)]
        assert h.output == [Total("ann", 3), Total("ann", 7), Total("bob", 1), Total("ann", 8)]


def test_rows_are_objects_dictionaries_or_tuples() -> None:
    with harness() as h:
        h.push(Payment("ann", 1), {"user": "ann", "amount": 2}, ("ann", 3))
        assert [row.total for row in h.output] == [1, 3, 6]


@pytest.mark.parametrize(
    "row", [{"user": "ann"}, {"user": "ann", "amount": 1, "more": 2}, ("ann", "1"), Total("ann", 1), "ann"]
)
def test_a_row_that_is_none_is_refused_and_changes_nothing(row: Any) -> None:
    with harness() as h:
        h.push(("ann", 1))
        with raises(SchemaMismatch, row_class="Payment"):
            h.push(("ann", 1), row)
        assert h.push(("ann", 1)) == [Total("ann", 2)]


def test_rows_of_a_key_are_in_declared_order_within_a_push() -> None:
    with KeyedHarness(RunningTotal(), KeyedInput(Payment, "user", order_by=("at",)), output=Total) as h:
        assert h.push(("ann", 5, 2), ("ann", 3, 1)) == [Total("ann", 3), Total("ann", 8)]


def test_a_function_object_lives_one_push() -> None:
    class Remembering(RunningTotal):
        seen = 0

        def process_element(self, row: Payment, ctx: Context) -> Iterable[Total]:
            self.seen += 1
            yield Total(row.user, self.seen)

    mine = Remembering()
    with KeyedHarness(mine, PAYMENTS, output=Total) as h:
        h.push(("ann", 1), ("ann", 1))
        h.push(("ann", 1))
        assert [row.total for row in h.output] == [1, 2, 1]
    assert mine.seen == 0


def test_side_outputs_are_collected_apart() -> None:
    with harness(side_outputs=(LARGE,)) as h:
        h.push(("ann", 100), ("ann", 1))
        assert h.side_output(LARGE) == [Payment("ann", 100)]
        assert [row.total for row in h.output] == [100, 101]


def test_a_side_output_that_is_not_collected_is_refused() -> None:
    with harness() as h, raises(ConfigError, tag="large", collected=[]):
        h.side_output(LARGE)


# -- time ---------------------------------------------------------------------------------------------------------


class Reminder(KeyedProcessFunction[Payment, Total]):
    """Calls back at the row's time, by both kinds of time."""

    def process_element(self, row: Payment, ctx: Context) -> None:
        ctx.timer_service().register_event_time_timer(row.at)
        ctx.timer_service().register_processing_time_timer(row.at + 1000)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterable[Total]:
        kind = 1 if ctx.time_domain() is TimeDomain.EVENT_TIME else 2
        yield Total(f"{ctx.get_current_key()}-{kind}", timestamp)


def reminders(**more: Any) -> KeyedHarness:
    return KeyedHarness(Reminder(), PAYMENTS, output=Total, **more)


def test_timers_fire_when_their_time_comes() -> None:
    with reminders() as h:
        h.push(("ann", 0, 20), ("bob", 0, 10), ("ann", 0, 30))
        assert h.advance_watermark(9) == []
        assert h.advance_watermark(20) == [Total("bob-1", 10), Total("ann-1", 20)]
        assert [row.total for row in h.advance_processing_time(1015)] == [1010]
        assert h.watermark == 20 and h.processing_time == 1015


def test_pending_timers_are_listed_in_order() -> None:
    with reminders(parallelism=2) as h:
        h.push(("ann", 0, 20), ("bob", 0, 10))
        event, processing = TimeDomain.EVENT_TIME, TimeDomain.PROCESSING_TIME
        assert h.timers() == [
            PendingTimer(event, 10, "bob"),
            PendingTimer(event, 20, "ann"),
            PendingTimer(processing, 1010, "bob"),
            PendingTimer(processing, 1020, "ann"),
        ]
        h.advance_watermark(20)
        assert [timer.domain for timer in h.timers()] == [processing, processing]


def test_draining_fires_every_event_time_timer_and_leaves_the_watermark() -> None:
    with reminders() as h:
        h.push(("ann", 0, 1 << 50))
        assert h.drain() == [Total("ann-1", 1 << 50)]
        assert h.watermark is None


def test_time_is_given_as_a_datetime_or_in_milliseconds() -> None:
    with reminders() as h:
        h.push(("ann", 0, 5000))
        moment = datetime.datetime(1970, 1, 1, 0, 0, 5, tzinfo=datetime.UTC)
        assert h.advance_watermark(moment) == [Total("ann-1", 5000)]
        assert h.watermark == 5000


@pytest.mark.parametrize(
    ("to", "facts"),
    [
        (4, {"present": 5, "given": 4}),
        ("5", {"given": "'5'"}),
        (True, {"given": "True"}),
        (1 << 62, {"given": 1 << 62}),
    ],
)
def test_time_that_cannot_be_is_refused(to: Any, facts: dict[str, Any]) -> None:
    with reminders() as h:
        h.advance_watermark(5)
        h.advance_processing_time(5)
        with raises(ConfigError, **facts):
            h.advance_watermark(to)
        with raises(ConfigError, **facts):
            h.advance_processing_time(to)
        assert h.watermark == h.processing_time == 5


def test_event_time_is_what_the_input_declares() -> None:
    class Late(KeyedProcessFunction[Payment, Total]):
        def process_element(self, row: Payment, ctx: Context) -> Iterable[Total]:
            time, watermark = ctx.timestamp(), ctx.timer_service().current_watermark()
            yield Total("late" if time is not None and time <= watermark else "early", time or -1)

    with KeyedHarness(Late(), KeyedInput(Payment, "user", event_time="at"), output=Total) as h:
        h.advance_watermark(10)
        assert h.push(("ann", 0, 10), ("ann", 0, 11)) == [Total("late", 10), Total("early", 11)]
    with KeyedHarness(Late(), PAYMENTS, output=Total) as h:
        assert h.push(("ann", 0, 10)) == [Total("early", -1)]


class Seen(KeyedProcessFunction[Payment, Total]):
    """Counts rows of a key, forgotten a second after the last."""

    event_time = False

    def open(self, ctx: RuntimeContext) -> None:
        builder = StateTtlConfig.new_builder(Time.seconds(1))
        ttl = (builder.use_event_time() if self.event_time else builder).build()
        self.seen = ctx.get_state(ValueStateDescriptor("seen", int, ttl=ttl))

    def process_element(self, row: Payment, ctx: Context) -> Iterable[Total]:
        seen = (self.seen.value() or 0) + 1
        self.seen.update(seen)
        yield Total(row.user, seen)


class SeenInEventTime(Seen):
    event_time = True


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: type(b).__name__)
def test_what_lives_for_a_time_expires_when_processing_time_advances(backend: StateBackend) -> None:
    with KeyedHarness(Seen(), PAYMENTS, output=Total, backend=backend) as h:
        h.push(("ann", 0), ("ann", 0))
        h.advance_processing_time(999)
        assert h.state("seen", "ann") == 2
        h.advance_processing_time(1000)
        assert h.state("seen", "ann") is None
        assert h.push(("ann", 0)) == [Total("ann", 1)]


def test_what_lives_in_event_time_expires_when_the_watermark_advances() -> None:
    with KeyedHarness(SeenInEventTime(), PAYMENTS, output=Total) as h:
        h.advance_watermark(0)
        h.push(("ann", 0))
        h.advance_processing_time(5000)
        assert h.push(("ann", 0)) == [Total("ann", 2)]
        h.advance_watermark(1000)
        assert h.push(("ann", 0)) == [Total("ann", 1)]


# -- state --------------------------------------------------------------------------------------------------------


class Mean(AggregateFunction[int, list[int], float]):
    def create_accumulator(self) -> list[int]:
        return [0, 0]

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        return [accumulator[0] + 1, accumulator[1] + value]

    def get_result(self, accumulator: list[int]) -> float:
        return accumulator[1] / accumulator[0]

    def merge(self, acc1: list[int], acc2: list[int]) -> list[int]:
        return [acc1[0] + acc2[0], acc1[1] + acc2[1]]


class EveryKind(KeyedProcessFunction[Payment, Total]):
    def open(self, ctx: RuntimeContext) -> None:
        self.last = ctx.get_state(ValueStateDescriptor("last", int))
        self.all = ctx.get_list_state(ListStateDescriptor("all", int))
        self.times = ctx.get_map_state(MapStateDescriptor("times", int, int))
        self.largest = ctx.get_reducing_state(ReducingStateDescriptor("largest", max, int))
        self.mean = ctx.get_aggregating_state(AggregatingStateDescriptor("mean", Mean(), list[int]))

    def process_element(self, row: Payment, ctx: Context) -> None:
        self.last.update(row.amount)
        self.all.add(row.amount)
        self.times.put(row.at, row.amount)
        self.largest.add(row.amount)
        self.mean.add(row.amount)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: type(b).__name__)
def test_every_kind_of_keyed_state_can_be_looked_into(backend: StateBackend) -> None:
    names = ("last", "all", "times", "largest", "mean")
    with KeyedHarness(EveryKind(), PAYMENTS, output=Total, backend=backend, parallelism=3) as h:
        assert [h.state(name, "ann") for name in names] == [None, [], {}, None, None]
        h.push(("ann", 5, 1), ("ann", 9, 2), ("bob", 7, 1))
        h.push(("ann", 1, 3))
        assert [h.state(name, "ann") for name in names] == [1, [5, 9, 1], {1: 5, 2: 9, 3: 1}, 9, 5.0]
        assert [h.state(name, "bob") for name in names] == [7, [7], {1: 7}, 7, 7.0]
        assert [h.state(name, "eve") for name in names] == [None, [], {}, None, None]
        assert {entry.state for entry in h.state_entries()} == set(names)


def test_looking_changes_nothing() -> None:
    with harness() as h:
        h.push(("ann", 1))
        before = h.snapshot()
        h.state("total", "ann"), h.state_entries(), h.timers()
        assert h.snapshot() == before


def test_a_key_of_several_columns_is_a_tuple() -> None:
    with KeyedHarness(RunningTotal(), KeyedInput(Payment, ("user", "at")), output=Total) as h:
        h.push(("ann", 3, 1), ("ann", 4, 2))
        assert (h.state("total", ("ann", 1)), h.state("total", ("ann", 2))) == (3, 4)
        with raises(ConfigError, columns=["user", "at"], key="'ann'"):
            h.state("total", "ann")


def test_a_state_or_key_that_cannot_be_is_refused() -> None:
    with harness() as h:
        with raises(ConfigError, name="totl", declared=["total"]):
            h.state("totl", "ann")
        with raises(StateError, value=1, type="string"):
            h.state("total", 1)
        with raises(ConfigError, uid="other", known=["operator"]):
            h.state("total", "ann", uid="other")


# -- snapshots ----------------------------------------------------------------------------------------------------


def _filled(backend: StateBackend, parallelism: int = 1) -> tuple[HarnessSnapshot, dict[str, int]]:
    totals = {f"user-{n}": n for n in range(40)}
    with harness(backend=backend, parallelism=parallelism) as h:
        h.push(*totals.items())
        return h.snapshot(), totals


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: type(b).__name__)
def test_state_is_the_same_at_every_parallelism(backend: StateBackend) -> None:
    snapshot, totals = _filled(backend)
    for parallelism in (3, 2):
        with KeyedHarness.restore(snapshot, parallelism=parallelism) as h:
            assert {user: h.state("total", user) for user in totals} == totals
            h.push(*((user, 1) for user in totals))
            totals = {user: total + 1 for user, total in totals.items()}
            assert {row.user: row.total for row in h.output} == totals
            snapshot = h.snapshot()


@pytest.mark.parametrize("then", BACKENDS, ids=lambda b: type(b).__name__)
@pytest.mark.parametrize("first", BACKENDS, ids=lambda b: type(b).__name__)
def test_a_snapshot_is_restored_in_any_backend(first: StateBackend, then: StateBackend) -> None:
    snapshot, totals = _filled(first, 2)
    with KeyedHarness.restore(snapshot, backend=then) as h:
        h.push(*((user, 0) for user in totals))
        assert {row.user: row.total for row in h.output} == totals


def test_a_snapshot_is_of_its_moment_and_may_be_restored_again() -> None:
    with harness() as h:
        h.push(("ann", 1))
        snapshot = h.snapshot()
        h.push(("ann", 10))
        for _ in range(2):
            with KeyedHarness.restore(snapshot) as restored:
                assert restored.output == []
                assert restored.push(("ann", 1)) == [Total("ann", 2)]
        assert h.push(("ann", 1)) == [Total("ann", 12)]


def test_timers_and_times_are_part_of_a_snapshot_and_overdue_timers_fire() -> None:
    with reminders() as h:
        h.push(("ann", 0, 20), ("bob", 0, 30))
        h.advance_watermark(10)
        h.advance_processing_time(1000)
        snapshot = h.snapshot()
    with KeyedHarness.restore(snapshot, parallelism=3) as h:
        assert (h.watermark, h.processing_time) == (10, 1000)
        assert sorted(row.total for row in h.advance_processing_time(5000)) == [1020, 1030]
        assert h.advance_watermark(20) == [Total("ann-1", 20)]
        assert [timer.key for timer in h.timers()] == ["bob"]


def test_a_time_to_live_goes_on_after_a_restore() -> None:
    with KeyedHarness(Seen(), PAYMENTS, output=Total) as h:
        h.push(("ann", 0))
        h.advance_processing_time(900)
        snapshot = h.snapshot()
    with KeyedHarness.restore(snapshot, parallelism=2) as h:
        assert h.state("seen", "ann") == 1
        h.advance_processing_time(1000)
        assert h.state("seen", "ann") is None


def test_a_new_version_of_a_function_takes_the_state_over() -> None:
    class Doubling(RunningTotal):
        def process_element(self, row: Payment, ctx: Context) -> Iterable[Total]:
            yield Total(row.user, 2 * (self.total.value() or 0))

    snapshot, _ = _filled(MemoryStateBackend())
    with KeyedHarness.restore(snapshot, Doubling()) as h:
        assert h.push(("user-7", 0)) == [Total("user-7", 14)]


def test_a_state_of_another_type_is_refused_as_a_run_would() -> None:
    class Texts(RunningTotal):
        def open(self, ctx: RuntimeContext) -> None:
            self.total = ctx.get_state(ValueStateDescriptor("total", str))  # type: ignore[assignment]

    snapshot, _ = _filled(MemoryStateBackend())
    with raises(IncompatibleState, name="total", stored="int", declared="str"):
        KeyedHarness.restore(snapshot, Texts())


def test_the_max_parallelism_of_a_snapshot_is_fixed() -> None:
    snapshot, _ = _filled(MemoryStateBackend())
    with raises(WrongJobRoot, found=128, wanted=64):
        KeyedHarness.restore(snapshot, max_parallelism=64)


def test_files_that_nothing_refers_to_are_collected() -> None:
    with harness(backend=FsStateBackend(inline_below_bytes=1)) as h:
        for n in range(5):
            h.push(("ann", n))
        assert len(h.snapshot().files) == len(open_storage(h.root).list("")) == 1


# -- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: type(b).__name__)
def test_a_batch_that_fails_names_key_and_row_and_leaves_nothing(backend: StateBackend) -> None:
    with harness(backend=backend, side_outputs=(LARGE,)) as h:
        h.push(("ann", 1))
        row = Payment("ann", -5)
        with raises(UserCodeError, operator="RunningTotal", key="{'user': 'ann'}", row=repr(row)) as caught:
            h.push(("ann", 100), row)
        assert "process_element" in str(caught.value) and "ValueError: below zero" in str(caught.value)
        assert h.side_output(LARGE) == []
        assert h.push(("ann", 1)) == [Total("ann", 2)]
        assert len(h.output) == 2


def test_a_null_key_is_refused_with_its_row() -> None:
    class Row(msgspec.Struct):
        user: str | None
        amount: int = 1

    with KeyedHarness(RunningTotal(), KeyedInput(Row, "user"), output=Total) as h:
        with raises(StateError, column="user", row="{'user': None, 'amount': 1}"):
            h.push((None,))


def test_an_emitted_row_of_another_class_is_refused() -> None:
    class Wrong(RunningTotal):
        def process_element(self, row: Payment, ctx: Context) -> Iterable[Any]:
            yield Payment(row.user, 1)

    with KeyedHarness(Wrong(), PAYMENTS, output=Total) as h:
        with raises(SchemaMismatch, row_class="Total", row=repr(Payment("ann", 1))):
            h.push(("ann", 1))


def test_rows_within_the_budget_become_dead_letters() -> None:
    with harness(on_error=DeadLetters(budget=1)) as h:
        h.push(("ann", 1), ("ann", -5), ("ann", 2))
        assert [row.total for row in h.output] == [1, 3]
        (letter,) = h.dead_letters
        assert "below zero" in letter.error and '"amount":-5' in letter.row
        with raises(UserCodeError, failed="2", budget="1"):
            h.push(("ann", -1), ("ann", -2))
        assert len(h.dead_letters) == 1


def test_more_state_than_the_memory_backend_may_hold_is_refused() -> None:
    with harness(backend=MemoryStateBackend(limit_bytes=200)) as h:
        with raises(ConfigError, uid="operator", limit="200"):
            h.push(*((f"user-{n}", 1) for n in range(50)))
        assert h.push(("ann", 1)) == [Total("ann", 1)]


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ((RunningTotal, PAYMENTS), {"given": repr(RunningTotal)}),
        ((RunningTotal(), PAYMENTS, PAYMENTS), {"function": "RunningTotal", "given": ["KeyedInput", "KeyedInput"]}),
        ((RunningTotal(),), {"function": "RunningTotal", "given": []}),
        ((RunningTotal(), Payment), {"given": repr(Payment)}),
        ((RunningTotal(), KeyedInput(Payment, "usr")), {"column": "usr", "called": "key_by"}),
        ((lambda rows: None, PAYMENTS), {"given": "None"}),
    ],
)
def test_what_cannot_be_a_harness_is_refused(arguments: tuple[Any, ...], facts: dict[str, Any]) -> None:
    output = {} if callable(arguments[0]) and not isinstance(arguments[0], type) else {"output": Total}
    with raises(JobDefinitionError, **facts):
        KeyedHarness(*arguments, **output)


def test_a_function_object_needs_the_class_of_its_output() -> None:
    with raises(JobDefinitionError, function="RunningTotal") as caught:
        KeyedHarness(RunningTotal(), PAYMENTS)
    assert "output=" in caught.value.hint


@pytest.mark.parametrize(
    ("more", "given"),
    [({"backend": "rocksdb"}, "'rocksdb'"), ({"side_outputs": ["large"]}, "'large'"), ({"on_error": "skip"}, "'skip'")],
)
def test_an_argument_of_another_kind_is_refused(more: dict[str, Any], given: str) -> None:
    with raises(JobDefinitionError, given=given):
        harness(**more)


def test_only_a_snapshot_is_restored() -> None:
    with harness() as h, raises(ConfigError, given=repr(h)):
        KeyedHarness.restore(h)  # type: ignore[arg-type]


def test_an_unknown_setting_is_refused() -> None:
    with raises(ConfigError, name="paralelism"):
        harness(paralelism=2)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that temporary folders are made in."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_closed_harness_keeps_its_output_and_nothing_else(scratch: Path) -> None:
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


def test_a_harness_that_is_not_closed_is_closed_with_its_object(scratch: Path) -> None:
    h = harness(backend=RocksDBStateBackend())
    h.push(("ann", 1))
    assert list(scratch.iterdir())
    del h
    assert list(scratch.iterdir()) == []
