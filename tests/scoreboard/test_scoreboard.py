"""A slice of the scoreboard, and that its rows find what is planted."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest

from tests.scoreboard import command
from tests.scoreboard.report import Score, headline, page
from tests.scoreboard.row import Result, Round, Row, Tier, caught, play
from tests.scoreboard.rows import ROWS

_SLOW_PLANTS = {
    "clocks", "other-writers", "killed-drivers", "killed-drivers-s3", "network", "busy", "forks", "long-runs",
    "new-roots",
}  # fmt: skip
"""Rows that take more than some seconds to find what is planted."""


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="stateflow")


@pytest.mark.parametrize("row", [row for row in ROWS if row.rounds.get(Tier.SLICE)], ids=lambda row: row.name)
def test_nothing_is_lost_doubled_or_not_noticed(row: Row) -> None:
    found = play(row, range(row.rounds[Tier.SLICE]))
    assert found.violations == []
    assert found.injected > 0


@pytest.mark.parametrize("row", [
    pytest.param(row, id=row.name, marks=[pytest.mark.slow] if row.on_spark or row.name in _SLOW_PLANTS else [])
    for row in ROWS
])  # fmt: skip
def test_a_planted_bug_is_found(row: Row) -> None:
    assert caught(row), f"{row.plant_text}: nobody noticed"


def _fails_at(seed: int) -> Row:
    def fail(round_: Round) -> int:
        assert round_.seed != seed, "something is lost"
        return 2

    return Row(1, "a-row", "a fault", "it holds", fail, {Tier.SLICE: 9}, plant="no-token")


def test_rounds_are_counted_and_a_violation_names_its_seed() -> None:
    found = play(_fails_at(2), range(9))
    assert (found.rounds, found.injected) == (9, 16)
    (violation,) = found.violations
    assert (
        violation.startswith("seed 2: AssertionError at test_scoreboard.py:")
        and "something is lost" in violation
    )


def test_a_round_that_cannot_be_played_is_a_violation() -> None:
    def broken(_: Round) -> int:
        raise OSError("no server")

    row = Row(1, "a-row", "a fault", "it holds", broken, {Tier.SLICE: 9}, plant="no-token")
    assert len(play(row, range(9)).violations) == 3


def _score(found: Result, caught: str) -> Score:
    return Score(
        "slice", found.injected, found.rounds, found.violations, caught, 1.0, "now", "abc", "a machine"
    )


def test_the_page_tells_of_violations_and_of_what_was_missed() -> None:
    row = _fails_at(2)
    scores = {row.name: _score(play(row, range(9)), "")}
    assert headline(scores, [row]).endswith("1 violations. 1 planted bugs, 1 missed.")
    written = page(scores, [row])
    assert "| 16 | 0 | 1 | 0 to 8 |" in written and "**missed**" in written and "something is lost" in written


def test_the_page_of_a_good_day_has_no_violations() -> None:
    row = _fails_at(99)
    written = page({row.name: _score(Result(8, 4), "seed 1: found")}, [row])
    assert (
        "Violations\n" not in written
        and ": found |" in written
        and "| a-row | slice | now | `abc` |" in written
    )


def test_one_round_is_played_and_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--rows", "histories", "--seed", "3"], tmp_path) == 0
    assert "100\n  injected" in capsys.readouterr().out
    assert command.main(["--rows", "no-such-row"], tmp_path) == 2
    assert list(tmp_path.iterdir()) == []


def test_rows_that_are_played_take_the_place_of_what_is_written(tmp_path: Path) -> None:
    first, second = (row.name for row in ROWS[:2])
    for name, injected in ((first, 1), (second, 2), (first, 30)):
        command._write(tmp_path, {name: _score(Result(injected, 1), "found")})
    stored = msgspec.json.decode((tmp_path / "scoreboard.json").read_bytes(), type=dict[str, Score])
    assert {name: score.injected for name, score in stored.items()} == {first: 30, second: 2}
    assert (tmp_path / "scoreboard.md").read_text().startswith("# Scoreboard\n\n**32 faults injected")


def test_every_row_that_was_asked_for_is_there() -> None:
    assert {row.number for row in ROWS} == {*range(1, 7), *range(8, 14), *range(15, 25)}
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert all(row.rounds.get(tier, 0) > 0 for row in ROWS for tier in (Tier.HALF_HOUR, Tier.NIGHTLY))
