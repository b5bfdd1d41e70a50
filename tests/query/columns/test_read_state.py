"""`stateflow.read_state` on the checkpoints and savepoints of a job."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

import stateflow
from stateflow import RocksDBStateBackend
from stateflow.clock import SystemClock
from stateflow.errors import ConfigError, CorruptFile, MissingFile, StateError
from stateflow.query.reader import state_table
from stateflow.state.stored_key import state_id
from stateflow.testing.harness.job import OPERATOR
from stateflow.types.key_encoding import encode_key
from stateflow.types.key_groups import key_group, subtask_of
from tests.query.columns.every_kind import KEY_GROUPS, Row, harness, read_table, snapshot_of, snapshot_with_entries
from tests.query.summed_job import SummedJob, totals


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
