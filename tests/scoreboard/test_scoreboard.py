"""A slice of the scoreboard, and that its rows find what is planted."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import msgspec
import pytest

from tests.scoreboard import command
from tests.scoreboard.report import Score, headline, page
from tests.scoreboard.row import Result, Round, Row, Tier, caught, play
from tests.scoreboard.rows import ROWS

_SLOW_PLANTS = {
    "clocks",
    "other-writers",
    "killed-drivers",
    "killed-drivers-s3",
    "network",
    "busy",
    "forks",
    "long-runs",
    "new-roots",
}
"""Rows that take more than some seconds to find what is planted."""


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="stateflow")


@pytest.mark.parametrize("row", [row for row in ROWS if row.rounds.get(Tier.SLICE)], ids=lambda row: row.name)
def test_nothing_is_lost_doubled_or_unnoticed(row: Row) -> None:
    found = play(row, range(row.rounds[Tier.SLICE]))
    assert found.violations == []
    assert found.injected > 0


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row.name, marks=[pytest.mark.slow] if row.on_spark or row.name in _SLOW_PLANTS else [])
        for row in ROWS
    ],
)
def test_a_planted_bug_is_found(row: Row) -> None:
    assert caught(row), f"{row.plant_text}: not found"


def _fails_at(seed: int) -> Row:
    def fail(round_: Round) -> int:
        assert round_.seed != seed, "something is lost"
        return 2

    return Row(1, "a-row", "a fault", "it holds", fail, {Tier.SLICE: 9}, plant="no-token")


def test_rounds_are_counted_and_a_violation_names_its_seed() -> None:
    found = play(_fails_at(2), range(9))
    assert (found.rounds, found.injected) == (9, 16)
    (violation,) = found.violations
    assert violation.startswith("seed 2: AssertionError at test_scoreboard.py:")
    assert "something is lost" in violation


def test_a_round_that_cannot_be_played_is_a_violation() -> None:
    def broken(_: Round) -> int:
        raise OSError("no server")

    row = Row(1, "a-row", "a fault", "it holds", broken, {Tier.SLICE: 9}, plant="no-token")
    assert len(play(row, range(9)).violations) == 3


def _score(found: Result, caught: str) -> Score:
    return Score("slice", found.injected, found.rounds, found.violations, caught, 1.0, "now", "abc", "a machine")


def _cells(written: str, name: str) -> list[str]:
    """Those of a row in the first table of the page."""
    line = next(line for line in written.splitlines() if f"| {name} |" in line)
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_page_has_counts_violations_and_whether_the_planted_bug_was_found() -> None:
    good, bad = Result(16, 9), play(_fails_at(2), range(9))
    pages, verdicts = [], []
    for found, caught_by in ((good, "seed 1: found"), (bad, "")):
        row, scores = _fails_at(2), {"a-row": _score(found, caught_by)}
        written = page(scores, [row])
        *cells, verdict = _cells(written, "a-row")
        assert cells[:6] == ["1", "a-row", "a fault", "16", "0", str(len(found.violations))]
        assert "| a-row | slice | now | `abc` |" in written
        # Faults, kills, histories, violations, planted bugs, missed ones.
        missed = 0 if caught_by else 1
        assert [*map(int, re.findall(r"\d+", headline(scores, [row])))] == [16, 0, 16, missed, 1, missed]
        pages.append(written)
        verdicts.append(verdict)
    assert verdicts[0] != verdicts[1]
    violation = f"- a-row: {bad.violations[0].splitlines()[0]}"
    assert violation in pages[1] and "- a-row: " not in pages[0]


def test_one_round_is_played_and_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--rows", "histories", "--seed", "3"], tmp_path) == 0
    assert capsys.readouterr().out.split()[:2] == ["histories", "100"]
    assert command.main(["--rows", "no-such-row"], tmp_path) == 2
    assert list(tmp_path.iterdir()) == []


def test_rows_that_are_played_take_the_place_of_what_is_written(tmp_path: Path) -> None:
    first, second = (row.name for row in ROWS[:2])
    for name, injected in ((first, 1), (second, 2), (first, 30)):
        command.write(tmp_path, {name: _score(Result(injected, 1), "found")})
    stored = msgspec.json.decode((tmp_path / "scoreboard.json").read_bytes(), type=dict[str, Score])
    assert {name: score.injected for name, score in stored.items()} == {first: 30, second: 2}
    assert (tmp_path / "scoreboard.md").read_text() == page(stored, ROWS)


def test_every_row_that_was_asked_for_is_there() -> None:
    assert {row.number for row in ROWS} == {*range(1, 7), *range(8, 14), *range(15, 25)}
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert all(row.rounds.get(tier, 0) > 0 for row in ROWS for tier in (Tier.HALF_HOUR, Tier.NIGHTLY))
