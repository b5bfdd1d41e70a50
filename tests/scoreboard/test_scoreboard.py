"""A slice of the scoreboard, and that its rows find what is planted."""

from __future__ import annotations

import logging

import pytest

from tests.scoreboard import command
from tests.scoreboard.report import Scores, headline, page
from tests.scoreboard.row import Result, Round, Row, Tier, caught, play
from tests.scoreboard.rows import ROWS

_SLOW_PLANTS = {"killed-drivers", "killed-drivers-s3", "network", "busy", "forks"}
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


def test_the_page_tells_of_violations_and_of_what_was_missed() -> None:
    row = _fails_at(2)
    scores = Scores(Tier.SLICE, {row.name: play(row, range(9))}, {row.name: ""}, 1.0,
                    {"at": "now", "commit": "abc", "machine": "a machine"})  # fmt: skip
    assert headline(scores, [row]).endswith("1 violations. 1 planted bugs, 1 missed.")
    written = page(scores, [row])
    assert "| 16 | 0 | 1 | 0 to 8 |" in written and "**missed**" in written and "something is lost" in written


def test_the_page_of_a_good_day_has_no_violations() -> None:
    row = _fails_at(99)
    scores = Scores(Tier.SLICE, {row.name: Result(8, 4)}, {row.name: "seed 1: found"}, 1.0,
                    {"at": "now", "commit": "abc", "machine": "a machine"})  # fmt: skip
    assert "Violations\n" not in page(scores, [row]) and ": found |" in page(scores, [row])


def test_the_command_plays_one_row_without_writing_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--rows", "histories", "--seed", "3"]) == 0
    assert "100\n  injected" in capsys.readouterr().out
    assert command.main(["--rows", "no-such-row"]) == 2


def test_every_row_that_was_asked_for_is_there() -> None:
    assert {row.number for row in ROWS} == {*range(1, 7), *range(8, 14), *range(15, 22)}
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert all(row.rounds.get(tier, 0) > 0 for row in ROWS for tier in (Tier.HALF_HOUR, Tier.NIGHTLY))
