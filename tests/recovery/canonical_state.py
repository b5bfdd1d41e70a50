"""What a canonical savepoint of the accounts must have, by plain dictionaries and without the code under test."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import xxhash

from tests.support import canonical_reader, root_files, stored_state
from tests.support.job_fixture import Row, expected

BACKENDS: dict[str, dict[str, Any]] = {
    "rocksdb": {"state__backend": "rocksdb"},
    "filesystem": {"state__backend": "filesystem", "state__inline_below_bytes": 1},
    "memory": {"state__backend": "memory"},
}
_SPARK_SEED = 42


def document_of(folder: Path) -> root_files.Document:
    """The document of a savepoint."""
    return root_files.unsealed((folder / "_savepoint").read_bytes())[0]


def position_of(document: root_files.Document) -> int:
    """Number of the source's rows that the state of a savepoint includes."""
    return int(json.loads(document["manifest"]["sources"][0]["offset"])["row"])


def check_canonical(folder: Path, rows: Sequence[Row], groups: int = 128) -> int:
    """A savepoint has exactly its files, and in them the state of its rows, in order of key group, state and key.

    Args:
        folder: of the savepoint.
        rows: all rows of the source.
        groups: its max parallelism.

    Returns its position.
    """
    root_files.check_savepoint(folder)
    document = document_of(folder)
    assert (document["format"], document["max_parallelism"]) == ("canonical", groups)
    manifest, position = document["manifest"], position_of(document)
    wanted = expected(rows[:position])
    assert stored_state.state_of(folder, manifest, "balances") == wanted.balances
    assert stored_state.state_of(folder, manifest, "turnovers") == wanted.turnovers
    for operator in manifest["operators"]:
        _check_order(folder, operator, groups)
    return position


def _check_order(folder: Path, operator: root_files.Document, groups: int) -> None:
    """Subtasks have ranges of key groups that do not overlap; keys ascend, and each has the group of its columns."""
    subtasks = sorted(operator["subtasks"], key=lambda subtask: int(subtask["first_group"]))
    bounds = [bound for s in subtasks for bound in (s["first_group"], s["last_group"] + 1)]
    assert bounds == sorted(bounds) and 0 <= bounds[0] and bounds[-1] <= groups
    keys: list[bytes] = []
    for subtask in subtasks:
        for file in subtask["files"]:
            for group, entries in _groups(folder, file, groups):
                assert entries and {int.from_bytes(key[:2], "big") for key, _ in entries} == {group}
                assert {_group_of(key, groups) for key, _ in entries} == {group}
                keys += [key for key, _ in entries]
    assert keys == sorted(set(keys))


def _groups(folder: Path, file: root_files.Document, groups: int) -> Iterator[tuple[int, list[tuple[bytes, bytes]]]]:
    stream = io.BytesIO(stored_state.content_of(folder, file))
    header = canonical_reader.header(stream)
    assert header["max_parallelism"] == groups
    for group, entries in canonical_reader.records(stream):
        assert header["first_group"] <= group <= header["last_group"]
        yield group, entries


def _group_of(key: bytes, groups: int) -> int:
    """``pmod(xxhash64(column), groups)``: an account and a shop are text, which ends with a zero byte."""
    text = key[7 : key.index(b"\0", 7)]
    hashed = xxhash.xxh64_intdigest(text, seed=_SPARK_SEED)
    return (hashed - (1 << 64) if hashed >> 63 else hashed) % groups
