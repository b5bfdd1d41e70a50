"""Rows and checkpoints that runs repeat after a restore, counted from a job's records."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stateflow.checkpoint.log.documents import ABORTED, Ancestry, CheckpointRecord, RestoreStep
from stateflow.checkpoint.restore import plan_document
from stateflow.checkpoint.restore.plan_document import Replay
from tests.checkpoint.records import record


def _head(kept: list[int], restores: dict[int, int] | None = None, **entry: Any) -> Any:
    """Returns the head of a job that keeps these checkpoints and went back from one entry to another."""
    steps = [RestoreStep(seq=seq, base=base) for seq, base in (restores or {}).items()]
    facts = {"generation": 1, "ordinal": 3, "ended": True, "seq": max([*kept, *(restores or {})]), **entry}
    return SimpleNamespace(entry=SimpleNamespace(ancestry=Ancestry(restores=steps), **facts))


def _rows(number: int, rows: int = 10, status: str = "completed") -> CheckpointRecord:
    return record(number, rows_in=rows, status=status)


RECORDS = [_rows(2, 100), _rows(3, 7), _rows(5, 8), _rows(5, 900, ABORTED)]


@pytest.mark.parametrize(
    ("kept", "after", "records", "restores", "wanted"),
    [
        ([2, 3, 5], 2, RECORDS, {}, Replay(15, 2)),
        ([2, 3, 5], 5, RECORDS, {}, Replay(0, 0)),
        ([5], 2, RECORDS, {}, Replay(15, 2)),
        ([2, 6], 2, [_rows(2), _rows(3, 1000), _rows(6, 5)], {5: 2}, Replay(5, 1)),
        ([2, 6], 3, [_rows(2), _rows(3, 1000), _rows(6, 5)], {5: 2}, None),
        ([2, 3, 5], 2, [_rows(2), _rows(5)], {}, None),
        ([2, 3, 5], 2, [_rows(3), _rows(5)], {}, None),
        ([3, 5], 2, [], {}, None),
    ],
    ids=["later-ones", "none-later", "not-kept", "undone", "target-undone", "gap", "trimmed", "no-record"],
)
def test_what_follows_the_checkpoint_counts_unless_undone_and_a_missing_record_makes_the_count_unknown(
    kept: list[int], after: int, records: list[CheckpointRecord], restores: dict[int, int], wanted: Replay | None
) -> None:
    assert plan_document.count_replay(_head(kept, restores), frozenset(kept), after, records) == wanted


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
def test_a_run_is_open_until_its_end_is_recorded(entry: dict[str, Any], is_open: bool) -> None:
    assert plan_document.is_run_open(_head([2, 6], {5: 2}, **entry)) is is_open
