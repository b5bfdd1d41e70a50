"""Keys and values that are too large: one row's problem, never that of the job, its documents or its next run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from stateflow import DeadLetters, RuntimeContext
from stateflow.api.dead_letters import LONGEST_KEY, LONGEST_ROW
from stateflow.api.functions.process import Context, KeyedProcessFunction
from stateflow.api.functions.vectorized import VectorizedKeyedFunction, VectorState
from stateflow.config.settings import LARGEST_KEY, EntryLimits
from stateflow.errors import EntryTooLarge
from stateflow.operations import ForkRequest, SavepointRequest, create_savepoint, fork
from stateflow.operations.verification import verify
from stateflow.runtime.task.vector_operator import VectorOperator
from stateflow.state.backends.hash_maps import DictBackend
from stateflow.testing import KeyedHarness, KeyedInput
from stateflow.types.descriptors import MapStateDescriptor, ValueStateDescriptor
from tests.support import root_files
from tests.support.errors import raises
from tests.support.graphs import Row
from tests.support.local_jobs import Growing, LocalJobs
from tests.support.operators import Row as OpRow
from tests.support.operators import chain_of, pieces_of, task_info
from tests.testing.every_state import INPUTS, KINDS, EveryState, Seen, Step, pack, unpack
from tests.testing.every_state import Row as StepsRow

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
        assert all(fact in letter.error for fact in (f"size_bytes={len(HUGE) + 2}", f"limit_bytes={LIMIT}"))
    assert max(path.stat().st_size for path in _documents(jobs.folder / "root")) < SMALL_DOCUMENT


def test_without_dead_letters_a_key_of_30_mb_fails_the_run_and_leaves_nothing(jobs: LocalJobs) -> None:
    with raises(EntryTooLarge, operator="count", setting="state.max_key_bytes") as caught:
        jobs.apply(WITH_HUGE_KEYS, _counted("fail"))
    facts = caught.value.facts
    assert (str(facts["size_bytes"]), str(facts["limit_bytes"])) == (str(len(HUGE) + 2), str(LIMIT))
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

STEPS: dict[str, Callable[[str], Step]] = {
    "value": lambda text: ("value", "update", text),
    "list": lambda text: ("list", "add", text),
    "lists": lambda text: ("list", "add_all", ["s", text]),
    "map": lambda text: ("map", "put", "k", text),
    "map-key": lambda text: ("map", "put", text, "s"),
    "reducing": lambda text: ("reducing", "add", text),
    "split-list": lambda text: ("split", "add", text),
}
"""Writes a text, by the kind of state."""


@pytest.mark.parametrize("kind", STEPS)
def test_an_entry_that_is_too_large_is_the_dead_letter_of_its_row_and_leaves_nothing(kind: str) -> None:
    limit, setting = (100, "state.max_map_key_bytes") if kind == "map-key" else (1000, "state.max_value_bytes")
    limits: dict[str, Any] = {"state__max_value_bytes": 1000, "state__max_map_key_bytes": 100}
    function = EveryState(dict.fromkeys(KINDS), None)

    def write(size: int) -> None:
        """Writes short texts of all kinds, and then one of some size."""
        steps = [*(step("s") for step in STEPS.values()), STEPS[kind]("x" * size)]
        h.push_both([StepsRow("a", 0, pack([(None, *step) for step in steps]))], [])

    with KeyedHarness(function, *INPUTS, output=Seen, on_error=DeadLetters(9), **limits) as h:
        write(5)
        before = h.state_entries(), h.operator_state("split")
        for size in (limit + 1, 2 * limit):
            write(size)
        errors = [letter.error for letter in h.dead_letters]
        assert len(errors) == 2 and all(e.startswith("EntryTooLarge") and setting in e for e in errors)
        assert (h.state_entries(), h.operator_state("split")) == before
        # An encoded value has more bytes, and a reduced one those of the rows before.
        write(limit - 50)
        assert len(h.dead_letters) == 2 and (h.state_entries(), h.operator_state("split")) != before


class Nested(KeyedProcessFunction[Row, Row]):
    """Writes as many empty lists as a row says, which take 80 times their size in memory."""

    def open(self, ctx: RuntimeContext) -> None:
        self.lists = ctx.get_state(ValueStateDescriptor("lists", list[list[int]]))

    def process_element(self, row: Row, ctx: Context) -> Iterator[Row]:
        before = len(self.lists.value() or ())
        self.lists.update([[]] * row.number)
        yield Row(row.key, before)


def test_a_value_that_takes_too_much_memory_is_the_dead_letter_of_its_row() -> None:
    with KeyedHarness(Nested(), KeyedInput(Row, "key"), output=Row, on_error=DeadLetters(9)) as h:
        for size in (10, 2_000_000, 20):
            h.push(Row("a", size))
        (letter,) = h.dead_letters
        assert letter.error.startswith("EntryTooLarge") and [row.number for row in h.output] == [0, 10]


# -- vectorized functions ---------------------------------------------------------------------------------------------


class Columns(VectorizedKeyedFunction):
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
        ("value", 1000, "state.max_value_bytes"), ("map", 1000, "state.max_value_bytes"),
        ("map-key", 99, "state.max_map_key_bytes"), ("key", 99, "state.max_key_bytes"),
    ],
)  # fmt: skip
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


def test_entries_stored_with_higher_limits_are_read_and_their_timers_fire() -> None:
    long, text = "k" * 200, "x" * 200
    writes = [("value", "update", text), ("list", "add", text), ("map", "put", text, text)]
    reads = [("value", "value"), ("list", "get"), ("map", "items")]

    def row(key: str, *steps: Step) -> StepsRow:
        return StepsRow(key, 0, pack([(None, *step) for step in steps]))

    with KeyedHarness(EveryState(dict.fromkeys(KINDS), None), *INPUTS, output=Seen) as h:
        h.push_both([row(key, *writes, ("timer", "register", "processing", 4)) for key in (long, "a")], [])
        snapshot = h.snapshot()
    low: dict[str, Any] = {f"state__max_{name}_bytes": 100 for name in ("key", "map_key", "value")}
    with KeyedHarness.restore(snapshot, **low) as h:
        fired = {seen.key: unpack(seen.results)[-1] for seen in h.advance_processing_time(4)}
        assert fired == {key: [text, None, None, None] for key in (long, "a")}
        (seen,) = h.push_both([row("a", *reads)], [])
        assert unpack(seen.results) == [text, [text], [[text, text]]]
        with raises(EntryTooLarge, operator="EveryState", size_bytes="202", limit_bytes="100"):
            h.push_both([row(long, *reads)], [])
