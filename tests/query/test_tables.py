"""State of every kind as tables, from the files of every backend and from canonical files."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import stateflow
from stateflow import FsStateBackend, MemoryStateBackend, RocksDBStateBackend
from stateflow.checkpoint.log.documents import SavepointFormat
from stateflow.clock import ManualClock, SystemClock
from stateflow.errors import ConfigError, CorruptFile, MissingFile, StateError
from stateflow.operations import SavepointRequest, create_savepoint
from stateflow.query.reader import state_table
from stateflow.query.snapshot import Snapshot
from stateflow.query.state_table import Rows
from stateflow.state.backends.factory import open_store_location, read_blocks
from stateflow.state.handles import Base
from stateflow.state.stored_key import state_id
from stateflow.testing.harness.job import OPERATOR
from stateflow.types.key_encoding import encode_key
from stateflow.types.key_groups import KeyGroupRange, key_group, subtask_of
from tests.query.every_kind import (
    COLUMNS,
    KEY_GROUPS,
    PlainState,
    Row,
    Rule,
    as_canonical,
    harness,
    read_rows,
    read_table,
    snapshot_of,
    snapshot_with_entries,
)
from tests.query.summed_job import SummedJob, totals
from tests.support.local_jobs import LocalJobs
from tests.support.moved_state import Row as Moved
from tests.support.moved_state import build_job, group_of

NAMES = st.text("ab\0é", max_size=3)
ROWS = st.lists(st.builds(Row, NAMES, st.integers(0, 3), st.integers(1, 1 << 62)), max_size=8)
RULES = st.lists(st.builds(Rule, NAMES, st.floats(allow_nan=False)), max_size=3)
BATCHES = st.lists(st.tuples(ROWS, RULES), min_size=1, max_size=3)
GROUPS = st.tuples(*[st.integers(0, KEY_GROUPS - 1)] * 2)
BEGIN = [Row("a", 1, 5), Row("b\0", 2, 7)], [Rule("r", 0.5)]
"""Makes all states known: each declares its state with its first row."""


_SLOW = pytest.mark.slow(reason="reads every kind of state in several ways")


@pytest.mark.parametrize(
    ("backend", "examples"),
    [
        (MemoryStateBackend(), 3),
        pytest.param(FsStateBackend(), 2, marks=_SLOW),
        pytest.param(RocksDBStateBackend(), 1, marks=_SLOW),
    ],
)
def test_tables_have_what_was_written(backend: Any, examples: int) -> None:
    @settings(max_examples=examples, deadline=None, phases=[Phase.generate])
    @given(BATCHES, st.lists(NAMES, max_size=3), GROUPS)
    def check(batches: Any, wanted: list[str], groups: tuple[int, int]) -> None:
        plain = PlainState()
        with harness(backend) as job:
            for rows, rules in (BEGIN, *batches):
                plain.add(rows, rules)
                job.push_both(rows, rules)
            native = snapshot_of(job)
            for snapshot in (native, as_canonical(native)):
                _check_keyed(snapshot, plain, wanted)
                _check_groups(snapshot, plain, KeyGroupRange(min(groups), max(groups)))
            _check_operator_state(native, plain)

    check()


def _check_keyed(snapshot: Snapshot, plain: PlainState, wanted: list[str]) -> None:
    for state in COLUMNS:
        assert read_rows(snapshot, state) == plain.rows(state)
        assert read_rows(snapshot, state, keys=tuple(wanted)) == plain.rows(state, wanted)


def _check_groups(snapshot: Snapshot, plain: PlainState, some: KeyGroupRange) -> None:
    found = read_table(snapshot, "last", ["key", "key_group"], groups=some).to_pylist()
    groups = {key: key_group([key], ["string"], KEY_GROUPS) for key in plain.keys}
    assert {row["key"]: row["key_group"] for row in found} == {
        key: group for key, group in groups.items() if group in some
    }


def _check_operator_state(snapshot: Snapshot, plain: PlainState) -> None:
    limits = read_table(snapshot, "_operator/rules", ["map_key", "value"]).to_pylist()
    assert {row["map_key"]: row["value"] for row in limits} == plain.limits
    seen = read_table(snapshot, "_operator/seen")
    numbers = [row.number for rows in plain.keys.values() for row in rows]
    assert sorted(row["value"]["item"] for row in seen.to_pylist()) == sorted(numbers)
    assert set(seen["kind"].to_pylist()) == {"split-list"}


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with harness(MemoryStateBackend()) as job:
        job.push_both([Row("a", 1, 2)], [Rule("r", 1.0)])
        yield snapshot_of(job)


@pytest.mark.parametrize(
    ("state", "rows"),
    [
        ("nothing", Rows()), ("_operator/nothing", Rows()), ("last", Rows(keys=(1,))),
        ("last", Rows(keys=(("a", "b"),))), ("_operator/seen", Rows(keys=("a",))),
        ("_raw", Rows(groups=KeyGroupRange(0, 1))), ("last", Rows(groups=KeyGroupRange(5, 3))),
        ("last", Rows(groups=KeyGroupRange(-1, 3))), ("last", Rows(groups=KeyGroupRange(0, KEY_GROUPS))),
    ],
)  # fmt: skip
def test_what_does_not_exist_is_a_config_error(snapshot: Any, state: str, rows: Rows) -> None:
    with pytest.raises(ConfigError):
        state_table(snapshot, OPERATOR, state, rows)


# -- stateflow.read_state on checkpoints and savepoints ---------------------------------------------------------------


def _totals(reader: pa.RecordBatchReader) -> dict[str, int]:
    table = reader.read_all()
    return dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))


@pytest.mark.parametrize("snapshot", [None, "canonical", "native"])
def test_the_state_of_a_checkpoint_and_of_savepoints(ran: SummedJob, snapshot: str | None) -> None:
    assert _totals(stateflow.read_state(ran.uri, "sum", "total", snapshot)) == totals(12)
    some = stateflow.read_state(ran.uri, "sum", "total", snapshot, keys=["a", "c", "none"])
    assert _totals(some) == {key: total for key, total in totals(12).items() if key in ("a", "c")}
    values = stateflow.read_state(ran.uri, "sum", "total", snapshot, columns=["value", "key_group"])
    assert values.schema.names == ["value", "key_group"]
    assert sorted(values.read_all()["value"].to_pylist()) == sorted(totals(12).values())
    group = key_group(["a"], ["string"], 16)
    reader = stateflow.read_state(ran.uri, "sum", "total", snapshot, key_groups=(group, group))
    assert {row["key_group"] for row in reader.read_all().to_pylist()} == {group}


def test_an_older_checkpoint_is_read(ran: SummedJob) -> None:
    assert _totals(stateflow.read_state(ran.uri, "sum", "total", ran.kept[0])) == totals(8)


def test_the_pin_ends_with_the_last_batch_and_with_the_reader(ran: SummedJob) -> None:
    def pins() -> int:
        return len(ran.root.head().entry.pinned)

    reader = stateflow.read_state(ran.uri, "sum", "total")
    assert pins() == 1
    reader.read_all()
    assert pins() == 0
    reader = stateflow.read_state(ran.uri, "sum", "total")
    assert pins() == 1
    del reader
    assert pins() == 0
    with pytest.raises(ConfigError):
        stateflow.read_state(ran.uri, "sum", "total", columns=["nothing"])
    assert pins() == 0


def test_keys_fetch_the_files_of_their_subtasks_only() -> None:
    with harness(RocksDBStateBackend()) as job:
        job.push_both([Row(key, 1, 2) for key in "abcdefgh"], [])
        snapshot = snapshot_of(job)
        wanted = subtask_of(key_group(["a"], ["string"], KEY_GROUPS), 3, KEY_GROUPS)
        for subtask in snapshot.operator(OPERATOR).subtasks:
            if subtask.subtask != wanted:
                snapshot.storage.delete([file.handle.key for file in subtask.files])
        assert read_table(snapshot, "last", keys=("a",)).num_rows == 1
        with pytest.raises(MissingFile):
            read_table(snapshot, "last")


@pytest.mark.parametrize("backend", [MemoryStateBackend(), RocksDBStateBackend()], ids=lambda each: type(each).__name__)
def test_no_ranges_of_keys_read_no_keys(backend: Any) -> None:
    with harness(backend) as job:
        job.push_both([Row("a", 1, 2)], [])
        snapshot = snapshot_of(job)
    for stored in (snapshot, as_canonical(snapshot)):
        for subtask in stored.operator(OPERATOR).subtasks:
            with open_store_location(stored.storage, SystemClock()) as location:
                assert list(read_blocks(location, Base.of(subtask), [])) == []


def test_a_damaged_value_is_named_and_only_decoded_if_the_column_is_read() -> None:
    key = encode_key(("a", None))
    group = key_group(["a"], ["string"], KEY_GROUPS).to_bytes(2)
    snapshot = snapshot_with_entries({group + state_id("last") + key: b"\x01\xa1x"})
    assert read_table(snapshot, "last", ["key"]).to_pylist() == [{"key": "a"}]
    with pytest.raises(CorruptFile) as raised:
        read_table(snapshot, "last")
    wanted: dict[str, Any] = {"operator": OPERATOR, "state": "last", "key": ("a",)}
    assert wanted.items() <= raised.value.facts.items()


def test_a_damaged_key_is_named() -> None:
    snapshot = snapshot_with_entries({b"\0\1" + state_id("last") + b"\x02a": b"\x01\1"})
    with pytest.raises(CorruptFile) as raised:
        read_table(snapshot, "last")
    assert {"operator": OPERATOR, "state": "last"}.items() <= raised.value.facts.items()


@pytest.mark.parametrize("key", [1.5, "1", True, 1 << 63])
def test_a_key_of_another_type_than_its_column_is_refused(key: object) -> None:
    snapshot = snapshot_with_entries({}, key_type="bigint")
    with pytest.raises(ConfigError) as raised:
        read_table(snapshot, "last", keys=(key,))
    assert {"column": "key", "type": "int64"}.items() <= raised.value.facts.items()


def test_batches_are_bounded() -> None:
    value = b"\x01\xda\xff\xff" + b"x" * 0xFFFF
    entries = {b"\0\1" + state_id("last") + encode_key((f"{number:04}", None)): value for number in range(400)}
    snapshot = snapshot_with_entries(entries, value_type=str)
    table = state_table(snapshot, OPERATOR, "last")
    sizes = [batch.nbytes for batch in table.batches(snapshot.storage, SystemClock(), ["key", "value"])]
    assert sum(sizes) > 25 << 20 and max(sizes) < 10 << 20


def test_names_of_key_columns_are_unique() -> None:
    entries = {b"\0\1" + state_id("last") + encode_key(("a", None)): b"\x01\7"}
    (row,) = read_table(snapshot_with_entries(entries, key_names=["value"]), "last").to_pylist()
    assert (row["key_value"], row["value"]) == ("a", 7)


def _pins(job: SummedJob) -> int:
    return len(job.root.head().entry.pinned)


@pytest.mark.parametrize("read", [0, 1])
def test_a_closed_reader_has_no_pin_and_returns_no_more_rows(ran: SummedJob, read: int) -> None:
    with stateflow.read_state(ran.uri, "sum", "total") as reader:
        assert isinstance(reader, pa.RecordBatchReader) and _pins(ran) == 1
        found = [reader.read_next_batch() for _ in range(read)]
        consumer = pa.RecordBatchReader.from_stream(reader)
    assert _pins(ran) == 0
    # Its end would look like the end of the state.
    with pytest.raises(StateError):
        reader.read_all()
    with pytest.raises(OSError, match="closed"):
        consumer.read_all()
    assert len(found) == read and all(batch.num_rows for batch in found)
    reader.close()


def test_a_reader_that_has_ended_can_be_closed_and_read_again(ran: SummedJob) -> None:
    with stateflow.read_state(ran.uri, "sum", "total") as reader:
        assert _totals(reader) == totals(12) and _pins(ran) == 0
        assert reader.read_all().num_rows == 0
    assert reader.read_all().num_rows == 0
    assert pa.table(stateflow.read_state(ran.uri, "sum", "total")).num_rows == len(totals(12))


def test_the_pin_ends_with_the_process_of_a_reader(ran: SummedJob) -> None:
    lines = f"import stateflow\nreader = stateflow.read_state({ran.uri!r}, 'sum', 'total')\nreader.schema.names[99]"
    ended = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, timeout=60)
    assert "IndexError" in ended.stderr and _pins(ran) == 0


# -- operator state ---------------------------------------------------------------------------------------------------

FEW_GROUPS = 32
COLLECTED = [Moved(number, "abc"[number % 3], number % 4, "collect", at=-1) for number in range(12)]
RATES = [Moved(20 + number, "a", 1, "rate", name="xy"[number % 2], value=number, at=-1) for number in range(5)]


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    jobs = LocalJobs(tmp_path_factory.mktemp("job"), ManualClock(), max_parallelism=FEW_GROUPS, parallelism=2)
    jobs.run(build_job(jobs, [*COLLECTED, *RATES], FEW_GROUPS), source__max_rows_per_batch=1000)
    root = str(jobs.folder / "root")
    for form in SavepointFormat:
        create_savepoint(root, SavepointRequest(name=form.value, format=form, from_head=True))
    yield root


@pytest.fixture(params=[None, *(form.value for form in SavepointFormat)])
def of_lists(request: pytest.FixtureRequest) -> str | None:
    name: str | None = request.param
    return name


def _rows(lists: str, of_lists: str | None, operator: str, state: str, **more: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = stateflow.read_state(lists, operator, state, of_lists, **more).read_all().to_pylist()
    return found


def test_lists_have_the_elements_of_all_subtasks(lists: str, of_lists: str | None) -> None:
    numbers = {row.number for row in COLLECTED}
    for state, kind in (("numbers", "split-list"), ("union", "union-list")):
        rows = _rows(lists, of_lists, "every", f"_operator/{state}")
        assert {row["value"] for row in rows} == numbers and {row["kind"] for row in rows} == {kind}
        assert len(rows) == len(numbers) and {row["subtask"] for row in rows} == {0, 1}


def test_broadcast_state_has_each_entry_once(lists: str, of_lists: str | None) -> None:
    rows = _rows(lists, of_lists, "rates", "_operator/rates", columns=["map_key", "value"])
    assert sorted((row["map_key"], row["value"]) for row in rows) == [("x", 6), ("y", 4)]


def test_raw_state_has_the_bytes_that_the_function_has_written(lists: str, of_lists: str | None) -> None:
    rows = _rows(lists, of_lists, "every", "_raw")
    assert sorted(int(row["value"]) for row in rows) == sorted(row.number for row in COLLECTED)
    wanted: dict[int, list[int]] = defaultdict(list)
    for row in COLLECTED:
        wanted[group_of(row.place, FEW_GROUPS)].append(row.number)
    rows = _rows(lists, of_lists, "every", "_raw_keyed")
    found = {row["key_group"]: sorted(json.loads(row["value"])) for row in rows}
    assert found == wanted
    first = min(wanted)
    some = _rows(lists, of_lists, "every", "_raw_keyed", key_groups=(0, first), columns=["key_group"])
    assert some == [{"key_group": first}]
