"""Delta tables whose log another writer has filled: no wait, no crash, bounded memory, always an error with a code."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stateflow.connectors import DeltaSink
from stateflow.connectors.delta.data_files import own_names
from stateflow.connectors.delta.log.listing import LOG_FOLDER
from stateflow.connectors.delta.log.table_log import Metadata, entry_path, read_head, unreferenced_files
from stateflow.connectors.delta.versions import read_entry
from stateflow.errors import CorruptFile
from tests.support.delta_tables import context, pairs, put
from tests.support.errors import raises
from tests.support.memory import CPU_SECONDS, LIMIT, MemoryPeak

_ABOUT = context()
_NAME = "stateflow-job-uid-g1-o1-s1-attempt-1.zstd.parquet"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    sink = DeltaSink(tmp_path / "table")
    sink.prepare(_ABOUT)
    put(sink, _ABOUT, 1, pairs(0, 3))
    return tmp_path / "table"


ACTS: dict[str, Callable[[Path], object]] = {
    "the newest version": lambda table: read_head(table, "app"),
    "an entry": lambda table: read_entry(table, 2),
    "references": lambda table: unreferenced_files(table, "app", {_NAME: 1}),
}


@pytest.mark.parametrize("act", ACTS)
def test_a_fifo_in_the_log_is_an_error_at_once(table: Path, act: str) -> None:
    os.mkfifo(entry_path(table, 2))
    with raises(CorruptFile, file=str(entry_path(table, 2))):
        ACTS[act](table)


def test_a_later_entry_that_is_a_fifo_is_an_error_at_once(table: Path) -> None:
    known = read_head(table, "app")
    os.mkfifo(entry_path(table, 2))
    with raises(CorruptFile, file=str(entry_path(table, 2)), found="FIFO"):
        read_head(table, "app", known)


@pytest.mark.parametrize("name", ["_last_checkpoint", f"{0:020d}.checkpoint.parquet", "unknown"])
def test_a_fifo_among_the_other_files_is_an_error_at_once(table: Path, name: str) -> None:
    os.mkfifo(table / LOG_FOLDER / name)
    with raises(CorruptFile):
        read_head(table, "app")


CONTENTS = {
    "a line": b'{"commitInfo":{"x":"',
    "zeros": b"",
    "empty lines": b"\n" * (3 << 20),
    "small lines": b"{}\n" * (2 << 20),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_a_log_file_of_400_megabytes_is_refused_soon_and_takes_no_memory(table: Path, name: str) -> None:
    known, path = read_head(table, "app"), entry_path(table, 2)
    path.write_bytes(CONTENTS[name])
    os.truncate(path, 400 << 20)
    peak = MemoryPeak()
    for act in (lambda: read_head(table, "app", known), lambda: read_entry(table, 2)):
        started = time.process_time()
        with raises(CorruptFile, file=str(path)):
            act()
        assert time.process_time() - started < CPU_SECONDS
    assert peak.bytes() <= LIMIT


def test_names_are_found_in_linear_time() -> None:
    started = time.process_time()
    assert list(own_names(b"stateflow-" * 1_600_000)) == []
    assert time.process_time() - started < CPU_SECONDS
    text = b'{"add":{"path":"a=1/' + _NAME.encode() + b'"}} x' + _NAME.encode()
    assert list(own_names(text)) == [_NAME.encode()]


MALFORMED = [
    b'{"metaData":"\xff"}',
    b'{"add":{"dataChange":true}}',
    b'{"add":{"dataChange":true,"path":1}}',
    b'{"remove":{"dataChange":true,"path":"x","deletionVector":{"storageType":"u"}}}',
    b'{"add":{"dataChange":true,"path":"x","stats":"[]"}}',
    b'{"add":{"dataChange":true,"path":"x","size":"1"}}',
]


@pytest.mark.parametrize("line", MALFORMED)
def test_a_malformed_action_is_a_corrupt_file(table: Path, line: bytes) -> None:
    entry_path(table, 2).write_bytes(line)
    with raises(CorruptFile, file=str(entry_path(table, 2))):
        read_entry(table, 2)


@pytest.mark.parametrize("schema", ["", "{}", "[" * 5000, '{"fields":[{}]}', '{"fields":[{"name":1,"type":"long"}]}'])
def test_a_malformed_schema_is_a_corrupt_file(schema: str) -> None:
    with raises(CorruptFile, table_id="t"):
        Metadata("t", schema).fields()
