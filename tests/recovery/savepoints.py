"""Savepoints that tests make and begin with, and what canonical ones must have, by plain dictionaries."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import xxhash

from tests.support import canonical_reader, folder_tables, root_files, stored_state
from tests.support.job_fixture import AccountsJob, Row, expected, multiset
from tests.support.processes import Ended, Running

BY_BACKEND: dict[str, dict[str, Any]] = {
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


# -- new job roots ----------------------------------------------------------------------------------------------------


class NewRoot:
    """A job with a savepoint at its 50th event, and the root of another one that begins with it.

    Attributes:
        old: the job.
        new: shares the job's input and, unless configured otherwise, not its tables.
    """

    def __init__(self, old: AccountsJob, folder: Path, savepoint: Path | None = None) -> None:
        """Makes the savepoint, unless one of the 50th event is given."""
        self.old = old
        self.savepoint = savepoint or _savepoint_at_50(old, folder)
        self.tables = folder / "tables"
        settings = {**old.settings, "local_dir": folder / "local"}
        self.new = replace(old, settings=settings, root_folder=folder / "new")

    def begin(self, *more: str, failpoint: str = "", own_tables: bool = True) -> Running:
        tables = ("--set", f"job.tables={self.tables}") if own_tables else ()
        command = ("run", self.new.job_file, "--from-savepoint", str(self.savepoint), *tables, *more)
        return self.new.begin(*command, failpoint=failpoint, with_job=True)

    def run(self, *more: str, failpoint: str = "", own_tables: bool = True) -> Ended:
        return self.begin(*more, failpoint=failpoint, own_tables=own_tables).wait()

    def run_to(self, rows: int, *more: str, own_tables: bool = True) -> None:
        """Delivers up to that many events, and runs until all are processed."""
        self.new.deliver(rows)
        self.run(*more, own_tables=own_tables).check()
        if own_tables:
            self.check_own_tables()

    def check_own_tables(self) -> None:
        """What the new job has written is what comes after the savepoint, once."""
        found = multiset(folder_tables.rows(self.tables / "movements"))
        assert found == multiset(expected(self.new.delivered).movements[50:])
        assert self.new.head.position == len(self.new.delivered)
        assert stored_state.read_state(self.new.root, "balances") == expected(self.new.delivered).balances


def _savepoint_at_50(job: AccountsJob, folder: Path) -> Path:
    job.run_to(50)
    made = job.create_savepoint("mine", "--into", str(folder / "kept"))
    return Path(unquote(made["path"].removeprefix("file://")))
