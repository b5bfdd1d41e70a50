"""A history as a graph: which records are in one column, which branch leaves which, and their order.

The golden file has pictures that were drawn by hand; random histories are read back from their drawings.
"""

from __future__ import annotations

import random
from itertools import permutations

import pytest
from syrupy.assertion import SnapshotAssertion

from stateflow.checkpoint.log.documents import ActionRecord, CheckpointRecord, Record, sort_records
from stateflow.cli.status import draw_timeline
from tests.checkpoint.records import record


def checkpoint(number: int, at: int | None = None, **more: object) -> CheckpointRecord:
    at = number if at is None else at
    return record(number, **{"ended_at": _time(at), "run": 1, "rows_in": 1234, **more})


def action(kind: str, seq: int, second: int | None = None, **facts: object) -> ActionRecord:
    at = _time(seq if second is None else second)
    return ActionRecord(seq=seq, kind=kind, ended_at=at, by="ada", facts=facts)


def _time(second: int) -> str:
    return f"2026-01-31T03:{second // 60:02}:{second % 60:02}.000+00:00"


def history(script: str) -> list[Record]:
    """Returns records from words: `3` is a checkpoint, `7:restore:3` an action at entry 7 that refers to 3."""
    records: list[Record] = []
    for word in script.split():
        seq, _, rest = word.partition(":")
        kind, _, base = rest.partition(":")
        records.append(
            action(kind, int(seq), **({"restored_checkpoint_id": int(base)} if base else {}))
            if kind
            else checkpoint(int(seq))
        )
    return records


def _graph(records: list[Record]) -> list[str]:
    drawn = draw_timeline(records)[: len(records)]
    return [line.partition("  2026-")[0].rstrip() for line in drawn]


HISTORIES: dict[str, list[Record]] = {
    "without a restore it is one line": history("2 3 3:savepoint 5 5:stop"),
    "what a restore undid has a column of its own": history("2 3 4 5 7:restore:3 9"),
    "back to 3, and then to 5, which the first restore undid: 4 and 5 count again": history(
        "2 3 4 5 7:restore:3 9 10 12:restore:5 14"
    ),
    "back to 3, to 5, and to 3 again: each branch has a column": history(
        "2 3 4 5 7:restore:3 9 12:restore:5 14 16:restore:3 18"
    ),
    "a start that went back by itself is a branch": history("2 3 6:rewind:2 7"),
    "a fork ends in another job": history("2 3 4 5:fork:3 7"),
    "the fork of an undone checkpoint crosses a line": history("2 3 4 6:restore:2 8 10:restore:2 11:fork:3 12"),
    "a job that began as a fork and took another job's state begins again": [
        action("fork", 1, forked_from="x", target_label="checkpoint 9"),
        *history("3 6:restore:0 8"),
    ],
    "a branch from before the newest records comes from above": history("15 16 18:restore:12 20"),
    "4 has no record: the newest older one replaces it": history("2 3 7 9:restore:4 11"),
    "a late savepoint belongs to the branch of its checkpoint": [
        *history("2 3 5:restore:2"),
        action("savepoint", 3, second=6),
        checkpoint(7),
    ],
}


def test_drawn_histories_match_the_golden_file(golden: SnapshotAssertion) -> None:
    drawn = {name: "\n".join(f"  {line}" for line in _graph(records)) for name, records in HISTORIES.items()}
    assert "".join(f"{name}:\n{lines}\n" for name, lines in drawn.items()) == golden


def _random_history(rng: random.Random) -> tuple[list[Record], dict[int, int], int]:
    """Returns records, the parent of each, and the last one's number."""
    records: list[Record] = [checkpoint(2)]
    parents: dict[int, int] = {}
    current, seq = 2, 2
    for _ in range(rng.randrange(2, 25)):
        seq += rng.randrange(1, 3)
        known = [r.checkpoint_id for r in records if isinstance(r, CheckpointRecord)]
        if rng.random() < 0.35:
            parents[seq] = rng.choice(known)
            records.append(action(rng.choice(["restore", "rewind"]), seq, restored_checkpoint_id=parents[seq]))
        else:
            parents[seq] = current
            records.append(checkpoint(seq))
        current = seq
    return records, parents, current


@pytest.mark.parametrize("seed", range(60))
def test_each_record_of_a_random_history_can_be_followed_up_to_its_parent(seed: int) -> None:
    records, parents, current = _random_history(random.Random(seed))
    rows = _graph(records)
    seqs = [r.checkpoint_id if isinstance(r, CheckpointRecord) else r.seq for r in records]
    for row, seq in enumerate(seqs[1:], 1):
        assert seqs[_followed_up(rows, row)] == parents[seq], "\n".join(rows)
    live = {current}
    while min(live) in parents:
        live.add(parents[min(live)])
    for drawn, seq in zip(rows, seqs, strict=True):
        assert (drawn[0] in "●↶") == (seq in live), "\n".join(rows)
        assert ("○" in drawn) <= (seq not in live)


def _followed_up(rows: list[str], row: int) -> int:
    """Reads the drawing as a person does: up the column, and across where it leaves another."""
    column = next(i for i, c in enumerate(rows[row]) if c in "●○↶")
    for above in range(row - 1, -1, -1):
        if rows[above][column] in "●○↶╮┬╭":
            return above
        assert rows[above][column] in "│┼", "\n".join(rows)
    raise AssertionError("\n".join(rows))


UNREADABLE_TIME, LOCAL_TIME = (
    ActionRecord(seq=3, kind="stop", ended_at=at, by="ada") for at in ("yesterday", "2026-01-31T03:00:09")
)


@pytest.mark.parametrize(
    "ordered",
    [
        # Records of one entry: the checkpoint comes first, then the actions by time.
        [
            checkpoint(3),
            action("savepoint", 3, 4, savepoint_id="a"),
            action("fork", 3, 5, restored_checkpoint_id=3),
            action("savepoint", 3, 6, savepoint_id="b"),
            action("dispose", 3, 7, savepoint_id="a"),
        ],
        # An action on an older checkpoint is listed where it was done.
        [checkpoint(3), checkpoint(4), action("fork", 6, 5, restored_checkpoint_id=3), action("savepoint", 4, 9)],
        [*history("3 5 7"), action("savepoint", 3, 10), checkpoint(12)],
        # The clocks of hosts differ by hours: the order in the log counts, and a dispose comes after its savepoint.
        [
            checkpoint(3, 100),
            checkpoint(5, 200),
            action("savepoint", 5, 0, savepoint_id="s"),
            action("dispose", 5, -60, savepoint_id="s"),
        ],
        [checkpoint(3, 100), action("savepoint", 3, 150), checkpoint(5, 200), checkpoint(7, 1)],
        [checkpoint(3), UNREADABLE_TIME, LOCAL_TIME],
    ],
)
def test_records_are_in_the_order_of_the_log_and_then_of_time(ordered: list[Record]) -> None:
    """Their names in storage end in random ids."""
    for mixed in permutations(ordered):
        assert sort_records(mixed) == ordered
        assert draw_timeline(mixed) == draw_timeline(ordered)


def test_a_line_has_time_kind_author_reason_size_and_duration(golden: SnapshotAssertion) -> None:
    # Of a run whose number is its generation; of one where it is not.
    runs = [(4, 7, 0.4), (5, 7, 999), (6, 12, 59_000), (7, 12, 90_000)]
    of_runs = [checkpoint(n, 0, generation=7, run=run, reason="nightly", duration_ms=ms) for n, run, ms in runs]
    made = ActionRecord(
        seq=8,
        kind="restore",
        ended_at=_time(61),
        by="ada",
        reason="version 2\n is wrong",
        duration_ms=1250,
        size_bytes=12_345,
        facts={
            "target_label": "checkpoint 3",
            "previous_checkpoint_id": 9,
            "request_id": "r",
            "restored_checkpoint_id": 3,
            "undone_checkpoint_ids": [],
        },
    )
    drawn = draw_timeline([checkpoint(3, 0), *of_runs, made, action("stop", 8)])
    assert "".join(f"{line}\n" for line in drawn) == golden
    # Without an undone record there is no legend.
    assert len(draw_timeline([])) == len(draw_timeline([checkpoint(3)])) == 1


def test_on_a_narrow_terminal_the_timeline_wraps_long_texts_and_does_not_break_paths() -> None:
    path = "/data/" + "very-long-" * 8 + "name"
    fork = action("fork", 4, restored_checkpoint_id=3, into=path, shadow=True, target_label="savepoint early")
    drawn = draw_timeline([*history("3 4"), fork, checkpoint(5)], width=80)
    assert path in [word for line in drawn for word in line.replace(",", "").split()]
    assert [line for line in drawn if len(line) > 80 and path not in line] == []
    # Only the live line continues below a fork.
    between = [line[:4] for line in drawn if "2026-" not in line]
    assert between and set(between) == {"│   "}
