"""Delta tables whose log another writer has filled: no wait, no crash, bounded memory, always an error with a code."""

from __future__ import annotations

import json
import os
import random
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stateflow.connectors import DeltaSink
from stateflow.connectors.delta.data_files import own_names
from stateflow.connectors.delta.log import LOG_FOLDER, entry_path, read_head, unreferenced_files
from stateflow.connectors.delta.versions import read_entry, restored
from stateflow.errors import CorruptFile, StateflowError
from tests.support.delta_tables import context, pairs, put
from tests.support.errors import raises

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
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for act in (lambda: read_head(table, "app", known), lambda: read_entry(table, 2)):
        started = time.process_time()
        with raises(CorruptFile, file=str(path)):
            act()
        assert time.process_time() - started < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_names_are_found_in_linear_time() -> None:
    started = time.process_time()
    assert list(own_names(b"stateflow-" * 1_600_000)) == []
    assert time.process_time() - started < 2
    text = b'{"add":{"path":"a=1/' + _NAME.encode() + b'"}} x' + _NAME.encode()
    assert list(own_names(text)) == [_NAME.encode()]


# -- random entries ---------------------------------------------------------------------------------------------------

_VALUES: list[object] = [
    None,
    True,
    -1,
    2**70,
    "",
    "x",
    [],
    {},
    [{}],
    {"version": []},
    "2",
    "²",
    "\x00",
    1e400,
    "[" * 5000,
]
_KEYS = [
    *("commitInfo", "add", "remove", "txn", "protocol", "metaData", "path", "dataChange", "size", "appId", "version"),
    *("operationParameters", "engineInfo", "operation", "deletionVector", "partitionValues", "stats", "tags", "id"),
    *("minReaderVersion", "minWriterVersion", "schemaString", "partitionColumns", "configuration", "storageType"),
]


def _random_value(rng: random.Random, depth: int) -> object:
    if depth and rng.random() < 0.6:
        return {rng.choice(_KEYS): _random_value(rng, depth - 1) for _ in range(rng.randrange(5))}
    return rng.choice(_VALUES)


def _random_line(rng: random.Random) -> bytes:
    kind = rng.randrange(10)
    if kind == 0:
        return rng.randbytes(rng.randrange(40)).replace(b"\n", b"")
    if kind == 1:
        return b"[" * 100_000
    line = json.dumps(_random_value(rng, 3)).encode()
    return line[: rng.randrange(len(line) + 1)] if kind == 2 else line


@pytest.mark.parametrize("inputs", [1000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_a_random_entry_is_read_or_an_error_with_a_code(table: Path, inputs: int) -> None:
    rng, known, path = random.Random(inputs), read_head(table, "app"), entry_path(table, 2)
    refused = 0
    for _ in range(inputs):
        path.write_bytes(b"\n".join(_random_line(rng) for _ in range(rng.randrange(1, 4))))
        acts: list[Callable[[], object]] = [lambda: read_head(table, "app", known), lambda: _entry(table)]
        for act in acts:
            started = time.process_time()
            try:
                act()
            except StateflowError as e:
                assert e.code == "corrupt-file"
                refused += 1
            assert time.process_time() - started < 2
    assert 0 < refused < 2 * inputs


def _entry(table: Path) -> None:
    entry = read_entry(table, 2)
    assert entry is not None
    restored(entry)
    for file in (*entry.added, *entry.removed):
        assert file.key
