"""Tables in a bucket have what tables on a disk have, such as added columns and rewinds; and what commits cost."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import msgspec
import obstore
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from stateflow import FileSink
from stateflow.api.sink import Writing
from stateflow.clock import SystemClock, epoch_milliseconds
from stateflow.connectors import DeltaSink
from stateflow.connectors.delta import log
from stateflow.connectors.delta.maintenance import Compaction, vacuum
from stateflow.connectors.files.sink import LOG_FOLDER as FILES_LOG
from stateflow.connectors.table_folder import open_table_folder
from tests.support.delta_tables import Pair, context, ids, pairs, put, visible, write

_ABOUT = context(Pair)


class Wide(msgspec.Struct):
    id: int
    text: str
    more: int | None = None


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The requests to logs of tables that are sent meanwhile."""
    sent: list[str] = []
    for name in ("put", "get", "head", "list", "list_with_delimiter", "delete"):
        call = getattr(obstore, name)

        def counted(store: object, *args: object, _call: object = call, _name: str = name, **more: object) -> object:
            if args and any(folder in str(args[0]) for folder in (log.LOG_FOLDER, FILES_LOG)):
                sent.append(_name)
            return _call(store, *args, **more)  # type: ignore[operator]

        monkeypatch.setattr(obstore, name, counted)
    yield sent


@pytest.mark.parametrize("upsert", [{}, {"mode": "upsert", "keys": "id"}], ids=["append", "upsert"])
def test_a_commit_costs_four_requests_to_the_log_and_a_start_few(
    s3: str, requests: list[str], upsert: dict[str, Any]
) -> None:
    sink = DeltaSink(s3, **upsert)
    sink.prepare(_ABOUT)
    for token in range(1, 12):
        del requests[:]
        put(sink, _ABOUT, token, pairs(token, 1))
        # The first upsert lists the files of the table.
        assert len(requests) <= (4 if token > 1 else 8)
    folder = open_table_folder(s3)
    log.checkpoint(folder, 11, {})
    for token in range(12, 15):
        put(sink, _ABOUT, token, pairs(token, 1))
    del requests[:]
    again = DeltaSink(s3, **upsert)
    again.prepare(_ABOUT)
    assert again.open_table(_ABOUT).token == 14
    assert len(requests) <= 10
    assert ids(s3) == [*range(1, 15)]


def test_a_commit_of_files_costs_four_requests_to_the_log_and_each_tenth_reads_what_is_after_the_last_list(
    s3: str, requests: list[str]
) -> None:
    sink = FileSink(s3)
    sink.prepare(_ABOUT)
    costs = []
    for token in range(1, 32):
        del requests[:]
        put(sink, _ABOUT, token, pairs(token, 1))
        costs.append(len(requests))
    listing = {number for number in range(1, 32) if (number + 1) % 10 == 0}
    assert {cost for token, cost in enumerate(costs, 1) if token not in listing} == {4}
    assert max(costs) <= 15
    del requests[:]
    again = FileSink(s3)
    again.prepare(_ABOUT)
    assert again.open_table(_ABOUT).token == 31
    assert len(requests) <= 10


def test_a_column_is_added_and_files_are_partitioned(s3: str) -> None:
    sink = DeltaSink(s3, partition_by="text")
    sink.prepare(_ABOUT)
    put(sink, _ABOUT, 1, [Pair(1, "a b/%"), Pair(2, "ä"), Pair(3, "")])
    wide, about = DeltaSink(s3, partition_by="text", schema_evolution="add-columns"), context(Wide)
    wide.prepare(about)
    put(wide, about, 2, [Wide(4, "ä", 7)])
    found = DeltaTable(s3).to_pyarrow_table().sort_by("id").to_pylist()
    assert [tuple(row.values()) for row in found] == [
        (1, "a b/%", None), (2, "ä", None), (3, None, None), (4, "ä", 7),
    ]  # fmt: skip


def test_an_upsert_is_rewound(s3: str) -> None:
    sink = DeltaSink(s3, mode="upsert", keys="id")
    sink.prepare(_ABOUT)
    put(sink, _ABOUT, 1, [Pair(1, "first"), Pair(2, "first")])
    put(sink, _ABOUT, 2, [Pair(2, "second"), Pair(3, "second")])
    assert [row["text"] for row in visible(s3)] == ["first", "second", "second"]
    plan = sink.open_table(_ABOUT).plan_rewind(1)
    assert plan.to_version == 1
    assert sink.open_table(_ABOUT).rewind(plan.to_version, 5) == 3
    assert [row["text"] for row in visible(s3)] == ["first", "first"]


def test_small_files_are_combined_and_old_ones_deleted(s3: str) -> None:
    sink = DeltaSink(s3)
    sink.prepare(_ABOUT)
    for token in range(1, 6):
        put(sink, _ABOUT, token, pairs(token, 1))
    report = Compaction(sink.own_table(_ABOUT)).run()
    assert (report.combined_files, report.new_files) == (5, 1)
    assert ids(s3) == [*range(1, 6)]
    later = epoch_milliseconds(SystemClock().now() + timedelta(days=1))
    freed = vacuum(sink.own_table(_ABOUT), [], now=later, older_than=0)
    assert freed.deleted_files == 5
    assert ids(s3) == [*range(1, 6)]
    assert len([f for f in open_table_folder(s3).files("") if f.key.endswith(".parquet")]) == 1


def test_a_sweep_removes_files_that_no_version_has(s3: str) -> None:
    sink = DeltaSink(s3)
    sink.prepare(_ABOUT)
    put(sink, _ABOUT, 1, pairs(1, 1))
    left = write(sink, _ABOUT, pairs(9, 1), Writing(1, 9, 0, "x"))
    swept = sink.sweep(_ABOUT, lambda generation, ordinal, path: True)
    assert swept == [file.path for file in left]
    assert ids(s3) == [1]


def test_a_file_above_the_size_of_one_request_is_published_whole(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateflow.connectors.data_files._COMPRESSION", "none")
    sink = DeltaSink(s3)
    sink.prepare(_ABOUT)
    rows = [Pair(number, f"{number:0100000d}") for number in range(250)]
    (file,) = put(sink, _ABOUT, 1, rows)
    assert file.size > 16 << 20
    assert ids(s3) == [*range(250)]


def test_expired_entries_are_removed_up_to_a_checkpoint_that_expired_as_well(s3: str) -> None:
    sink = DeltaSink(s3)
    sink.prepare(_ABOUT)
    folder = open_table_folder(s3)
    for token in range(1, 4):
        put(sink, _ABOUT, token, pairs(token, 1))
    log.checkpoint(folder, 2, {"delta.logRetentionDuration": "interval 0 seconds"})
    # All are expired, and version 2 has a checkpoint now: the entries before it are not needed.
    put(sink, _ABOUT, 4, pairs(4, 1))
    log.checkpoint(folder, 4, {"delta.logRetentionDuration": "interval 1 week"})
    assert min(log.list_log(folder).entries) == 2
    assert ids(s3) == [1, 2, 3, 4]


def test_delta_rs_writes_the_same_table_at_the_same_time(s3: str) -> None:
    """With its defaults, under which its commits are conditional puts as well."""
    sink = DeltaSink(s3)
    sink.prepare(_ABOUT)

    def ours() -> None:
        for token in range(1, 9):
            files = write(sink, _ABOUT, pairs(token, 1), Writing(1, token, 0, "a"))
            while sink.open_table(_ABOUT).commit(token, files) is None:
                pass

    def theirs() -> None:
        for number in range(101, 109):
            write_deltalake(s3, pa.table({"id": pa.array([number], pa.int64()), "text": ["x"]}), mode="append")

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(ours), pool.submit(theirs)]:
            done.result()
    assert ids(s3) == [*range(1, 9), *range(101, 109)]
    assert DeltaTable(s3).version() == 16
