"""Rows that are read again after a restore, counted from a job's records."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stateflow.checkpoint.log.documents import Ancestry, RestoreStep
from stateflow.checkpoint.log.records import ABORTED, CheckpointRecord
from stateflow.checkpoint.restore import replay


def head(line: list[int], restores: dict[int, int] | None = None, **entry: Any) -> Any:
    """A job whose kept checkpoints are these, and which went back from one entry to another."""
    went = [RestoreStep(seq=seq, base=base) for seq, base in (restores or {}).items()]
    facts = {"generation": 1, "ordinal": 3, "ended": True, "seq": max([*line, *(restores or {})]), **entry}
    return SimpleNamespace(entry=SimpleNamespace(ancestry=Ancestry(since=1, restores=went), **facts))


def count(
    line: list[int], after: int, records: list[CheckpointRecord], restores: dict[int, int] | None = None
) -> int | None:
    return replay.count_rows(head(line, restores), frozenset(line), after, records)


def record(number: int, rows: int = 10, status: str = "completed") -> CheckpointRecord:
    return CheckpointRecord(
        checkpoint_id=number,
        generation=1,
        ordinal=number,
        committed_at="",
        duration_ms=1,
        increment_bytes=0,
        full_bytes=0,
        files=0,
        rows_in=rows,
        rows_out={},
        status=status,
    )


def test_what_came_after_the_checkpoint_counts() -> None:
    records = [record(2, 100), record(3, 7), record(5, 8), record(5, 900, ABORTED)]
    assert count([2, 3, 5], 2, records) == 15
    assert count([2, 3, 5], 5, records) == 0
    assert count([5], 2, records) == 15, "kept or not"


def test_what_a_restore_has_undone_does_not_count_again() -> None:
    records = [record(2), record(3, 1000), record(6, 5)]
    assert count([2, 6], 2, records, {5: 2}) == 5


@pytest.mark.parametrize(
    ("line", "known"), [([2, 3, 5], [2, 5]), ([2, 3, 5], [3, 5]), ([3, 5], [])], ids=["gap", "trimmed", "none"]
)
def test_where_a_record_is_missing_it_is_not_known(line: list[int], known: list[int]) -> None:
    assert count(line, 2, [record(number) for number in known]) is None


@pytest.mark.parametrize(
    ("entry", "is_open"),
    [
        ({"ended": True}, False),
        ({"ended": False}, True),
        ({"ended": False, "generation": 5, "ordinal": 0}, False),
        ({"ended": False, "generation": 5, "ordinal": 1}, True),
    ],
    ids=["ended", "works-or-killed", "a-restore", "a-run-that-went-back-by-itself"],
)
def test_a_run_is_open_until_it_has_ended(entry: dict[str, Any], is_open: bool) -> None:
    assert replay.is_run_open(head([2, 6], {5: 2}, **entry)) is is_open
