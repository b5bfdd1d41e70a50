"""Keys and values that are too large: one row's problem, never that of the job, its documents or its next run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from stateflow import DeadLetters, ListStateDescriptor, ReducingStateDescriptor, RuntimeContext
from stateflow.api.dead_letters import LONGEST_KEY, LONGEST_ROW
from stateflow.api.functions.checkpointed import CheckpointedFunction, FunctionInitializationContext
from stateflow.api.functions.process import Context, KeyedProcessFunction, OnTimerContext
from stateflow.api.functions.vectorized import VectorizedKeyedFunction, VectorState
from stateflow.config.settings import LARGEST_KEY, EntryLimits
from stateflow.errors import EntryTooLarge
from stateflow.operations import ForkRequest, SavepointRequest, create_savepoint, fork
from stateflow.operations.verification import verify
from stateflow.runtime.task.keyed_operator import KeyedOperator
from stateflow.runtime.task.operator_runtime import InitialState
from stateflow.runtime.task.vector_operator import VectorOperator
from stateflow.state.backends.hash_maps import DictBackend
from stateflow.state.kinds.timers import TimerIndex
from stateflow.types.descriptors import MapStateDescriptor, ValueStateDescriptor
from tests.support import root_files
from tests.support.errors import raises
from tests.support.graphs import Row
from tests.support.local_jobs import Growing, LocalJobs
from tests.support.operators import Row as OpRow
from tests.support.operators import chain_of, pieces_of, task_info

SMALL_DOCUMENT = 20_000
LIMIT = EntryLimits().key_bytes


def _documents(root: Path) -> list[Path]:
    """Everything in a job root but the files of state."""
    found = [path for path in root.rglob("*") if path.is_file() and path.suffix != ".sst"]
    return [path for path in found if path.name == "manifest.json" or "data" not in path.relative_to(root).parts]


# -- keys that are too large ------------------------------------------------------------------------------------------

HUGE = "k" * (30 << 20)
WITH_HUGE_KEYS = [Row(key, n) for n, key in enumerate(["a", "b", HUGE, "a", HUGE, "b", "a"])]


class Count(KeyedProcessFunction[Row, Row]):
    """Counts the rows of a key."""

    def open(self, ctx: RuntimeContext) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", int))

    def process_element(self, row: Row, ctx: Context) -> Iterator[Row]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield Row(row.key[-1], count)


def _counted(on_error: Any) -> Any:
    return lambda rows: rows.key_by("key", order_by=("number",)).process(
        Count(), output=Row, uid="count", on_error=on_error
    )


def _check_counted(jobs: LocalJobs, rows: list[Row]) -> None:
    """The table has the number of each of these rows among those of its key."""
    counts: Counter[str] = Counter()
    expected: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        counts[row.key] += 1
        expected[row.key[-1], counts[row.key], None] += 1
    assert Counter(jobs.rows()) == expected


@pytest.mark.long(reason="writes hundreds of megabytes")
def test_keys_of_30_mb_become_short_dead_letters_and_leave_small_documents(jobs: LocalJobs) -> None:
    jobs.apply(WITH_HUGE_KEYS, _counted(DeadLetters(9)), source__max_rows_per_batch=4, parallelism=2)
    _check_counted(jobs, [row for row in WITH_HUGE_KEYS if row.key != HUGE])
    letters = jobs.letters()
    assert len(letters) == 2
    for letter in letters:
        assert letter.operator == "count" and len(letter.key) <= LONGEST_KEY and len(letter.row) <= LONGEST_ROW
        assert letter.key.startswith('{"key":"kkk') and letter.key.endswith(" characters)")
        assert all(fact in letter.error for fact in (f"size={len(HUGE) + 2}", f"limit={LIMIT}"))
    assert max(path.stat().st_size for path in _documents(jobs.folder / "root")) < SMALL_DOCUMENT


def test_without_dead_letters_a_key_of_30_mb_fails_the_run_and_leaves_nothing(jobs: LocalJobs) -> None:
    with raises(EntryTooLarge, operator="count", setting="state.max_key_bytes") as caught:
        jobs.apply(WITH_HUGE_KEYS, _counted("fail"))
    assert (str(caught.value.facts["size"]), str(caught.value.facts["limit"])) == (str(len(HUGE) + 2), str(LIMIT))
    assert len(str(caught.value)) < SMALL_DOCUMENT and jobs.rows() == []
    assert max(path.stat().st_size for path in _documents(jobs.folder / "root")) < SMALL_DOCUMENT


def test_a_row_with_a_key_that_is_too_large_changes_nothing_for_the_others(jobs: LocalJobs) -> None:
    """Its neighbours in the order of rows are processed, whatever Arrow batch they are in."""
    large = "k" * 200
    rows = [Row(("a", large, "b", large + "2", "c")[n % 5], n) for n in range(30)]
    jobs.apply(rows, _counted(DeadLetters(99)), state__max_key_bytes=20, source__max_rows_per_batch=7)
    _check_counted(jobs, [row for row in rows if len(row.key) < 20])
    letters = [json.loads(letter.row)["number"] for letter in jobs.letters()]
    assert sorted(letters) == [row.number for row in rows if len(row.key) >= 20]


# -- keys of 1 MB, which a setting permits ----------------------------------------------------------------------------

LONG = [f"{'k' * 1_000_000}{n}" for n in range(8)]
MB_KEYS: dict[str, Any] = {"state__max_key_bytes": LARGEST_KEY, "source__max_rows_per_batch": 100}


@pytest.mark.long(reason="writes hundreds of megabytes")
def test_keys_of_1_mb_with_a_common_start_leave_small_checkpoints_and_are_found(jobs: LocalJobs) -> None:
    """Restored on another host, at another parallelism, from a savepoint, and in a fork."""

    def build(home: LocalJobs, count: int) -> Any:
        def declare(env: Any) -> None:
            rows = [Row(key, 0) for _ in range(count) for key in LONG]
            counted = env.from_source(Growing(rows, Row), uid="rows").key_by("key")
            counted.process(Count(), output=Row, uid="count").sink_to(home.sink("out"), uid="out")

        return declare

    root, other_host = jobs.folder / "root", {"local_dir": jobs.folder / "other"}
    more: list[dict[str, Any]] = [{"parallelism": 2}, {"parallelism": 3}, other_host]
    for number, settings in enumerate(more):
        jobs.run(build(jobs, number + 1), **MB_KEYS, **settings)
        assert max(path.stat().st_size for path in _documents(root)) < SMALL_DOCUMENT
    assert Counter(jobs.rows()) == Counter((key[-1], n, None) for key in LONG for n in (1, 2, 3))
    (newest,) = verify(str(root), deep=True, checkpoint=root_files.head(root).checkpoint)
    assert newest.entries == len(LONG)
    saved = create_savepoint(str(root), SavepointRequest(name="long", from_head=True))
    forked = LocalJobs(jobs.folder / "fork")
    fork(str(root), ForkRequest(saved.name, forked.storage.uri))
    forked.run(build(forked, 4), **MB_KEYS, parallelism=1)
    assert Counter(forked.rows()) == Counter((key[-1], 4, None) for key in LONG)


# -- each kind of state -----------------------------------------------------------------------------------------------

VALUE_LIMIT, MAP_KEY_LIMIT = 1000, 100
LIMITS: dict[str, Any] = {"state__max_value_bytes": VALUE_LIMIT, "state__max_map_key_bytes": MAP_KEY_LIMIT}
KINDS = {
    "value": "state.max_value_bytes",
    "list": "state.max_value_bytes",
    "lists": "state.max_value_bytes",
    "map": "state.max_value_bytes",
    "map-key": "state.max_map_key_bytes",
    "reducing": "state.max_value_bytes",
    "split-list": "state.max_value_bytes",
}


class Write(msgspec.Struct):
    """A text of some length for one kind of state."""

    key: str
    number: int
    kind: str
    size: int


class Seen(msgspec.Struct):
    """What state has after a row."""

    number: int
    found: str


class Everything(KeyedProcessFunction[Write, Seen], CheckpointedFunction):
    """Writes a short text to each kind of state, and a text of the row's size to one."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.split = context.get_operator_state_store().get_list_state(ListStateDescriptor("split", str))

    def open(self, ctx: RuntimeContext) -> None:
        self.value = ctx.get_state(ValueStateDescriptor("value", str))
        self.list = ctx.get_list_state(ListStateDescriptor("list", str))
        self.map = ctx.get_map_state(MapStateDescriptor("map", str, str))
        self.reducing = ctx.get_reducing_state(ReducingStateDescriptor("reducing", lambda a, b: a + b, str))

    def process_element(self, row: Write, ctx: Context) -> Iterator[Seen]:
        self._write("s")
        text = "x" * row.size
        if row.kind == "value":
            self.value.update(text)
        elif row.kind == "list":
            self.list.add(text)
        elif row.kind == "lists":
            self.list.add_all(["s", text])
        elif row.kind == "map":
            self.map.put("k", text)
        elif row.kind == "map-key":
            self.map.put(text, "s")
        elif row.kind == "reducing":
            self.reducing.add(text)
        else:
            self.split.add(text)
        lengths = [len(self.value.value() or ""), len(self.reducing.get() or "")]
        lists = [len(list(found)) for found in (self.list.get(), self.map.items(), self.split.get())]
        yield Seen(row.number, json.dumps(lengths + lists))

    def _write(self, text: str) -> None:
        self.value.update(text)
        self.list.add(text)
        self.map.put(text, text)
        self.reducing.add(text)
        self.split.add(text)


def _writes(kind: str) -> list[Write]:
    limit = MAP_KEY_LIMIT if kind == "map-key" else VALUE_LIMIT
    # A value has two or four more bytes when it is encoded, and reduced ones have those of the rows before.
    sizes = [5, 2 * limit, limit - 50, limit + 1, 5]
    if kind == "reducing":
        sizes[2] = 100
    return [Write("a", number, kind, size) for number, size in enumerate(sizes)]


def _everything(rows: Any, on_error: Any) -> Any:
    keyed = rows.key_by("key", order_by=("number",))
    return keyed.process(Everything(), output=Seen, uid="all", on_error=on_error)


@pytest.mark.parametrize("kind", KINDS)
def test_an_entry_that_is_too_large_is_the_dead_letter_of_its_row_and_leaves_nothing(
    jobs: LocalJobs, kind: str
) -> None:
    """State afterwards is that of a job without these rows."""
    settings: dict[str, Any] = {**LIMITS, "source__max_rows_per_batch": 2}
    writes = _writes(kind)
    jobs.apply(writes, lambda rows: _everything(rows, DeadLetters(9)), **settings)
    letters = {json.loads(letter.row)["number"]: letter.error for letter in jobs.letters()}
    assert sorted(letters) == [1, 3]
    assert all(error.startswith("EntryTooLarge") and KINDS[kind] in error for error in letters.values())
    good = LocalJobs(jobs.folder / "good")
    left = [write for write in writes if write.number not in letters]
    good.apply(left, lambda rows: _everything(rows, "fail"), **settings)
    assert sorted(jobs.rows()) == sorted(good.rows())


class Nested(KeyedProcessFunction[Write, Seen]):
    """Writes as many empty lists as a row says, which take 80 times their size in memory."""

    def open(self, ctx: RuntimeContext) -> None:
        self.lists = ctx.get_state(ValueStateDescriptor("lists", list[list[int]]))

    def process_element(self, row: Write, ctx: Context) -> Iterator[Seen]:
        before = len(self.lists.value() or ())
        self.lists.update([[]] * row.size)
        yield Seen(row.number, str(before))


def test_a_value_that_takes_too_much_memory_is_the_dead_letter_of_its_row(jobs: LocalJobs) -> None:
    writes = [Write("a", number, "", size) for number, size in enumerate([10, 2_000_000, 20])]
    jobs.apply(
        writes,
        lambda rows: rows.key_by("key", order_by=("number",)).process(
            Nested(), output=Seen, uid="nested", on_error=DeadLetters(9)
        ),
    )
    (letter,) = jobs.letters()
    assert json.loads(letter.row)["number"] == 1 and letter.error.startswith("EntryTooLarge")
    assert sorted(jobs.rows()) == [(0, "0"), (2, "10")]


# -- vectorized functions ---------------------------------------------------------------------------------------------


class Columns(VectorizedKeyedFunction):
    """Writes texts of some length for each key, by columns."""

    def __init__(self, kind: str, size: int) -> None:
        self.kind = kind
        self.size = size

    def open(self, ctx: RuntimeContext) -> None:
        self.value = ctx.get_state(ValueStateDescriptor("value", str))
        self.map = ctx.get_map_state(MapStateDescriptor("map", str, str))

    def process_batch(self, batch: pa.RecordBatch, state: VectorState) -> None:
        of, texts = np.arange(len(state)), pa.array(["x" * self.size] * len(state))
        short = pa.array(["s"] * len(state))
        if self.kind == "value":
            state.write(self.value, texts)
        elif self.kind == "map":
            state.write_entries(self.map, of, short, texts)
        elif self.kind == "map-key":
            state.write_entries(self.map, of, texts, short)


VECTOR_LIMITS = EntryLimits(100, 100, 1000)


@pytest.mark.parametrize(
    ("kind", "size", "setting"),
    [
        ("value", 1000, "state.max_value_bytes"),
        ("map", 1000, "state.max_value_bytes"),
        ("map-key", 99, "state.max_map_key_bytes"),
        ("key", 99, "state.max_key_bytes"),
    ],
)
def test_a_vectorized_function_has_the_same_limits(kind: str, size: int, setting: str) -> None:
    for smaller in (2 if kind.endswith("key") else 10, 0):
        store = DictBackend()
        key = "k" * (size - smaller) if kind == "key" else "a"
        operator = VectorOperator(chain_of(Columns(kind, size - smaller)), task_info(), store, VECTOR_LIMITS)
        (piece,) = pieces_of(chain_of(Columns(kind, 0)), [OpRow(key, 1)])
        if smaller:
            assert [*operator.process(*piece), *operator.finish()] == []
            assert bool(dict(store.scan(b""))) == (kind != "key")
            continue
        with raises(EntryTooLarge, operator="op", setting=setting):
            list(operator.process(*piece)) + list(operator.finish())
        assert dict(store.scan(b"")) == {}


# -- settings ---------------------------------------------------------------------------------------------------------


class Keeps(KeyedProcessFunction[Any, Any]):
    """Writes long texts once; then reads them, in rows and in timers."""

    def __init__(self, size: int) -> None:
        self.size = size

    def open(self, ctx: RuntimeContext) -> None:
        self.value = ctx.get_state(ValueStateDescriptor("value", str))
        self.list = ctx.get_list_state(ListStateDescriptor("list", str))
        self.map = ctx.get_map_state(MapStateDescriptor("map", str, str))

    def process_element(self, row: Any, ctx: Context) -> Iterator[Any]:
        if self.size:
            text = "x" * self.size
            self.value.update(text)
            self.list.add(text)
            self.map.put(text, text)
            ctx.timer_service().register_processing_time_timer(1)
        yield from self._found()

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Any]:
        yield from self._found()

    def _found(self) -> Iterator[Any]:
        key, value = next(self.map.items())
        assert self.map.get(key) == value
        yield len(self.value.value() or ""), [len(each) for each in self.list.get()], len(key), len(value)


def test_entries_stored_with_higher_limits_are_read_and_their_timers_fire() -> None:
    store, index, key = DictBackend(), TimerIndex(), "k" * 200
    chain = chain_of(Keeps(200))
    first = KeyedOperator(chain, task_info(1), InitialState(store, timer_index=index))
    found = (200, [200], 200, 200)
    for piece in pieces_of(chain, [OpRow(key, 1), OpRow("a", 1)]):
        assert first.process(*piece) == [found, found]
    first.finish()
    low = InitialState(store, timer_index=index, limits=EntryLimits(100, 100, 100))
    second = KeyedOperator(chain_of(Keeps(0)), task_info(2), low)
    assert [row for rows in second.fire() for row in rows] == [found, found]
    (piece,) = pieces_of(chain, [OpRow("a", 2)])
    assert second.process(*piece) == [found]
    (piece,) = pieces_of(chain, [OpRow(key, 2)])
    with raises(EntryTooLarge, operator="op", size=202, limit=100):
        second.process(*piece)
