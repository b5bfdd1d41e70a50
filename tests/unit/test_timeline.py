"""A history as a graph: which records stand in one column, what leaves what, and in which order they come.

The pictures are drawn by hand from what happened: they are the oracle.
"""

from __future__ import annotations

import random
from itertools import permutations
from textwrap import dedent

import pytest
from msgspec.structs import replace
from syrupy.assertion import SnapshotAssertion

from stateflow.checkpoint.log.records import ActionRecord, CheckpointRecord, Record, in_order
from stateflow.cli.timeline import draw_timeline


def checkpoint(number: int, at: int | None = None, ms: float = 31.4) -> CheckpointRecord:
    return CheckpointRecord(
        checkpoint_id=number,
        generation=1,
        run=1,
        ordinal=number,
        committed_at=_time(number if at is None else at),
        duration_ms=ms,
        increment_bytes=3000,
        full_bytes=9000,
        files=2,
        rows_in=1234,
        rows_out={},
    )


def action(kind: str, seq: int, second: int | None = None, **facts: object) -> ActionRecord:
    return ActionRecord(
        seq=seq,
        kind=kind,
        at=_time(seq if second is None else second),
        by="ada",
        facts={k: str(v) for k, v in facts.items()},
    )


def restore(seq: int, base: int) -> ActionRecord:
    return action("restore", seq, base=base)


def _time(second: int) -> str:
    return f"2026-01-31T03:{second // 60:02}:{second % 60:02}.000+00:00"


def _names(records: list[Record]) -> list[str]:
    return [str(r.checkpoint_id) if isinstance(r, CheckpointRecord) else r.kind for r in records]


def graph(*records: Record) -> list[str]:
    """The graph alone, without words and legend."""
    drawn = draw_timeline(records)[: len(records)]
    return [line.partition("  2026-")[0].rstrip() for line in drawn]


def picture(text: str) -> list[str]:
    return [line.rstrip() for line in dedent(text).strip("\n").splitlines()]


# -- branches ---------------------------------------------------------------------------------------------------------


def test_without_a_restore_it_is_one_line() -> None:
    assert graph(checkpoint(2), checkpoint(3), action("savepoint", 3), checkpoint(5), action("stop", 5)) == picture("""
        ●
        ●
        ◆
        ●
        ■
        """)
    assert len(draw_timeline([])) == 1


def test_what_a_restore_undid_stands_aside_from_where_it_went_back_to() -> None:
    first = [checkpoint(n) for n in (2, 3, 4, 5)]
    assert graph(*first, restore(7, 3), checkpoint(9)) == picture("""
        ●
        ●─╮
        │ ○
        │ ○
        ↶
        ●
        """)


def test_going_back_to_an_undone_branch_makes_it_the_one_that_counts() -> None:
    """2-3-4-5, back to 3, 9-10, then back to 5: 4 and 5 count again, and 9 and 10 do not."""
    first = [checkpoint(n) for n in (2, 3, 4, 5)]
    assert graph(*first, restore(7, 3), checkpoint(9), checkpoint(10), restore(12, 5), checkpoint(14)) == picture("""
        ●
        ●─╮
        ● │
        ● │
        │ ↶
        │ ○
        │ ○
        ↶
        ●
        """)


def test_each_branch_has_a_column_of_its_own() -> None:
    """Back to 3 twice, and to 5 of the branch that the first of them undid, in vain."""
    first = [checkpoint(n) for n in (2, 3, 4, 5)]
    assert graph(
        *first, restore(7, 3), checkpoint(9), restore(12, 5), checkpoint(14), restore(16, 3), checkpoint(18)
    ) == picture("""
        ●
        ●─┬─╮
        │ ○ │
        │ ○ │
        │ │ ↶
        │ │ ○
        │ ↶
        │ ○
        ↶
        ●
        """)


def test_a_fork_leaves_for_a_job_of_its_own() -> None:
    records = [checkpoint(n) for n in (2, 3, 4)]
    fork = action("fork", 5, base=3, into="/elsewhere")
    assert graph(*records, fork, checkpoint(7)) == picture("""
        ●
        ●─╮
        ● │
        │ ⑂
        ●
        """)


def test_lines_that_cross_are_drawn_so() -> None:
    """The fork of an undone checkpoint passes the line that was undone later."""
    first = [checkpoint(n) for n in (2, 3, 4)]
    later: list[Record] = [restore(6, 2), checkpoint(8), restore(10, 2), action("fork", 10, second=11, base=3)]
    assert graph(*first, *later, checkpoint(12)) == picture("""
        ●─┬─╮
        │ ○─┼─╮
        │ ○ │ │
        │   ↶ │
        │   ○ │
        ↶     │
        │     ⑂
        ●
        """)


def test_a_job_that_began_as_a_fork_and_took_anothers_state_begins_anew() -> None:
    begun = action("fork", 1, of="x", at="checkpoint 9")
    assert graph(begun, checkpoint(3), restore(6, base=0), checkpoint(8)) == picture("""
          ⑂
          ○
        ↶
        ●
        """)


def test_a_branch_from_before_the_newest_records_comes_from_above() -> None:
    assert graph(checkpoint(15), checkpoint(16), restore(18, 12), checkpoint(20)) == picture("""
        │ ○
        │ ○
        ↶
        ●
        """)


def test_a_checkpoint_without_a_record_is_the_newest_older_one_in_the_graph() -> None:
    """Of a run that was killed between the commit of 4 and its record."""
    assert graph(checkpoint(2), checkpoint(3), checkpoint(7), restore(9, 4), checkpoint(11)) == picture("""
        ●
        ●─╮
        │ ○
        ↶
        ●
        """)


def test_a_start_that_went_back_by_itself_is_a_branch_as_well() -> None:
    assert graph(checkpoint(2), checkpoint(3), action("rewind", 6, base=2), checkpoint(7)) == picture("""
        ●─╮
        │ ○
        ↶
        ●
        """)


def test_a_savepoint_that_was_made_late_belongs_to_the_branch_of_its_checkpoint() -> None:
    records: list[Record] = [
        checkpoint(2),
        checkpoint(3),
        restore(5, 2),
        action("savepoint", 3, second=6),
        checkpoint(7),
    ]
    assert graph(*records) == picture("""
        ●─╮
        │ ○
        ↶ │
        │ ◆
        ●
        """)


def _random_history(dice: random.Random) -> tuple[list[Record], dict[int, int], int]:
    """Records, the parent of each point, and the last point."""
    records: list[Record] = [checkpoint(2)]
    parents: dict[int, int] = {}
    stand, seq = 2, 2
    for _ in range(dice.randrange(2, 25)):
        seq += dice.randrange(1, 3)
        known = [r.checkpoint_id for r in records if isinstance(r, CheckpointRecord)]
        if dice.random() < 0.35:
            parents[seq] = dice.choice(known)
            records.append(restore(seq, parents[seq]))
        else:
            parents[seq] = stand
            records.append(checkpoint(seq))
        stand = seq
    return records, parents, stand


@pytest.mark.parametrize("seed", range(200))
def test_whatever_was_gone_back_to_each_record_can_be_followed_up_to_what_it_came_of(seed: int) -> None:
    """Reads the drawing as a person does: up the column, and across where it leaves another."""
    records, parents, stand = _random_history(random.Random(seed))
    rows = graph(*records)
    seqs = [r.checkpoint_id if isinstance(r, CheckpointRecord) else r.seq for r in records]
    for row, seq in enumerate(seqs[1:], 1):
        assert seqs[_followed_up(rows, row)] == parents[seq], "\n".join(rows)
    live = {stand}
    while min(live) in parents:
        live.add(parents[min(live)])
    for drawn, seq in zip(rows, seqs, strict=True):
        assert (drawn[0] in "●↶") == (seq in live), "\n".join(rows)
        assert ("○" in drawn) <= (seq not in live)


def _followed_up(rows: list[str], row: int) -> int:
    place = next(i for i, c in enumerate(rows[row]) if c in "●○↶")
    while True:
        row -= 1
        found = rows[row][place]
        if found in "●○↶":
            return row
        if found in "╮┬╭":
            return row  # whose only mark it comes from
        assert found in "│┼", "\n".join(rows)


# -- order ------------------------------------------------------------------------------------------------------------


def test_records_come_in_one_order_however_they_are_named() -> None:
    """The names in storage end in random ids; at one entry the checkpoint comes first, then what was done, by time."""
    records: list[Record] = [
        checkpoint(3, at=3),
        action("savepoint", 3, second=4, id="a"),
        action("fork", 3, second=5, base=3),
        action("savepoint", 3, second=6, id="b"),
        action("dispose", 3, second=7, id="a"),
    ]
    for mixed in permutations(records):
        assert in_order(mixed) == records
        assert draw_timeline(mixed) == draw_timeline(records)


def test_what_was_done_to_an_older_checkpoint_stands_where_it_was_done() -> None:
    records: list[Record] = [
        checkpoint(3),
        checkpoint(4),
        action("fork", 6, second=5, base=3),
        action("savepoint", 4, second=9),
    ]
    assert _names(in_order([records[3], *records[:3]])) == ["3", "4", "fork", "savepoint"]
    slow = action("savepoint", 3, second=10)
    assert _names(in_order([slow, checkpoint(3), checkpoint(5), checkpoint(7), checkpoint(12)])) == [
        "3",
        "5",
        "7",
        "savepoint",
        "12",
    ]


def test_hosts_clocks_change_nothing_about_what_came_of_what() -> None:
    """The savepoint's clock is hours behind, and so is that of one checkpoint; a dispose comes after its savepoint."""
    made, gone = action("savepoint", 5, second=0, id="s"), action("dispose", 5, second=-60, id="s")
    assert _names(in_order([gone, made, checkpoint(5, at=200), checkpoint(3, at=100)])) == [
        "3",
        "5",
        "savepoint",
        "dispose",
    ]
    late = action("savepoint", 3, second=150)
    assert _names(in_order([checkpoint(7, at=1), checkpoint(5, at=200), late, checkpoint(3, at=100)])) == [
        "3",
        "savepoint",
        "5",
        "7",
    ]


def test_a_time_that_is_none_does_no_harm() -> None:
    odd = ActionRecord(seq=3, kind="stop", at="yesterday", by="ada")
    local = ActionRecord(seq=3, kind="stop", at="2026-01-31T03:00:09", by="ada")
    assert in_order([local, odd, checkpoint(3)]) == [checkpoint(3), odd, local]


# -- words ------------------------------------------------------------------------------------------------------------


def test_a_line_has_when_what_who_why_how_much_and_how_long(golden: SnapshotAssertion) -> None:
    made = ActionRecord(
        seq=7,
        kind="restore",
        at=_time(61),
        by="ada",
        reason="version 2\n is wrong",
        took_ms=1250,
        bytes=12_345,
        facts={"to": "checkpoint 3", "from_checkpoint": "9", "request": "r", "base": "3", "undone": ""},
    )
    # Of a run without a number, as older versions wrote it; of one that is its generation; of one that is not.
    runs = [
        replace(checkpoint(n, at=0), generation=7, run=run, reason="nightly") for n, run in ((4, 0), (5, 7), (6, 12))
    ]
    before = [checkpoint(3, at=0), *runs]
    assert "".join(f"{line}\n" for line in draw_timeline([*before, made, action("stop", 7)])) == golden


@pytest.mark.parametrize(
    ("ms", "written"), [(0.4, " 0 ms"), (999, " 999 ms"), (59_000, " 59.0 s"), (90_000, " 1.5 min")]
)
def test_a_duration_has_a_fitting_unit(ms: float, written: str) -> None:
    (line,) = draw_timeline([checkpoint(3, ms=ms)])
    assert written in line


def test_undone_ones_are_explained_only_where_there_are_some() -> None:
    assert len(draw_timeline([checkpoint(3)])) == 1
    explained = draw_timeline([checkpoint(3), checkpoint(4), restore(6, 3)])[3:]
    assert "○" in "".join(explained)


def test_on_a_narrow_terminal_long_texts_go_on_beside_the_graph_and_no_path_is_broken() -> None:
    path = "/data/" + "very-long-" * 8 + "name"
    fork = action("fork", 4, base=3, into=path, shadow="True", at="savepoint early")
    drawn = draw_timeline([checkpoint(3), checkpoint(4), fork, checkpoint(5)], width=80)
    assert path in [word for line in drawn for word in line.replace(",", "").split()]
    assert [line for line in drawn if len(line) > 80 and path not in line] == []
    # Only the live line goes on below a fork.
    beside = [line[:4] for line in drawn if "2026-" not in line]
    assert beside and set(beside) == {"│   "}
