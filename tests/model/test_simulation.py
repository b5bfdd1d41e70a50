"""20,000 histories of the protocol break no rule; with any one rule taken out the simulator finds the mistake."""

from __future__ import annotations

import logging
from collections import Counter, deque

import pytest

from tests.model.__main__ import main
from tests.model.history import Failure, Report, Search, explore, play
from tests.model.mutants import MUTANTS
from tests.model.plan import PLANS, VERDICTS
from tests.model.rules import Violation

_CHUNKS = 8
_CHUNK = 2_500
_DIRECTED = {"rewinds": 1500, "keeping": 600, "given-up": 1500, "beside": 600, "shared": 500}
_BOUND = 5_000

_AT_LEAST = {
    "steps": 400_000, "commits": 8_000, "fenced": 4_500, "deletions": 50_000, "publications seen": 6_500,
    "adoptions": 100, "checkpoints given up": 1_000, "pins": 1_000, "unpins": 1_000, "retentions shortened": 1_000,
    "entries in stale slots": 300, "late writes landed": 500,
    "savepoints complete": 300, "savepoints made by runs": 15, "savepoints given up": 30, "savepoints disposed": 10,
    "requests done": 200, "requests withdrawn": 300, "stops": 50, "intents": 20, "intents to an older checkpoint": 3,
    "tables rewound (restore)": 25, "forks that went on": 20, "forks half made": 5,
} | dict.fromkeys(VERDICTS[1:], 200)  # fmt: skip
"""What so many histories must have seen, or they show nothing. A history has a bounded number of steps, and a run needs
more of them for a checkpoint since it deletes old log entries when it starts and ends."""

_AT_LEAST_DIRECTED: dict[str, dict[str, int]] = {
    "rewinds": {
        "intents": 200, "intents to an older checkpoint": 70, "tables rewound (restore) with rows undone": 70,
        "tables rewound (keep)": 50, "rewinds (restore) with a late publication before them": 20,
        "restores begun again": 50, "states imported": 5,
    },
    "keeping": {
        "savepoints complete": 500, "savepoints made by runs": 80, "savepoints disposed": 60,
        "savepoints given up": 80, "requests withdrawn": 500, "savepoints taken by the run": 5,
    },
    "shared": {
        "appended by others to a table in limbo": 400, "runs stopped by others' rows": 50, "intents replaced": 8,
        "commits of others undone": 40, "tables rewound late for a replaced plan": 2,
    },
    "shared-lost": {"appended by others to a table in limbo": 300, "runs stopped by others' rows": 50},
    "given-up": {"savepoints given up": 100, "abandoned pins dropped": 100},
    "beside": {
        "uploads beside a batch": 4_000, "uploads lost": 100, "runs that waited in vain": 5, "commits": 3_000,
        "savepoints made by runs": 40, "stops": 50, "fenced": 200,
    },
}  # fmt: skip
"""What the directed searches are for."""

_SEEDS = [
    ("plain-none", 112),
    ("unasked-savepoint", 7),
    ("late-copies", 107),
    ("outrun-request", 5),
    ("half-fork", 108),
    ("untold-savepoint", 36),
    ("kept-unpublished", 7),
]
"""Histories that showed a mistake in the code, by the mutant that brings the mistake back."""


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Runs that lose tell so in their logs, and millions of steps have many."""
    caplog.set_level(logging.ERROR, logger="stateflow")


def _assert_sound(report: Report) -> None:
    assert not report.failures, report.failures[0].story()


@pytest.mark.parametrize("chunk", range(_CHUNKS))
def test_no_history_breaks_a_rule(chunk: int) -> None:
    report = explore(range(chunk * _CHUNK, (chunk + 1) * _CHUNK))
    _assert_sound(report)
    assert {what: report.stats[what] for what, least in _AT_LEAST.items() if report.stats[what] < least} == {}


@pytest.mark.parametrize("plan", [name for name in PLANS if name])
def test_no_directed_search_breaks_a_rule(plan: str) -> None:
    report = explore(range(_DIRECTED.get(plan, 300)), Search(plan=plan))
    _assert_sound(report)
    wanted = _AT_LEAST_DIRECTED.get(plan, {})
    assert {what: report.stats[what] for what, least in wanted.items() if report.stats[what] < least} == {}


@pytest.mark.parametrize(("name", "seed"), _SEEDS)
def test_a_history_that_showed_a_mistake_is_sound_now(name: str, seed: int) -> None:
    play(seed, Search(plan=MUTANTS[name].plan))
    with pytest.raises(Violation):
        play(seed, Search(name))


def _first_finding(name: str) -> Failure | None:
    """The first history that breaks a rule which tells of the mistake; others may run into a mere assertion."""
    start = 0
    while failures := explore(range(start, _BOUND), Search(name)).failures:
        if failures[0].rule in MUTANTS[name].rules:
            return failures[0]
        start = failures[0].seed + 1
    return None


@pytest.mark.parametrize("name", MUTANTS)
def test_a_rule_taken_out_is_missed(name: str) -> None:
    assert _first_finding(name), f"{_BOUND} histories did not show that {MUTANTS[name].what}"


def test_a_seed_decides_everything() -> None:
    traces: list[deque[str]] = [deque(), deque()]
    stats = [play(7, trace=trace) for trace in traces]
    assert traces[0] == traces[1]
    assert stats[0] == stats[1] == play(7)


def test_mistakes_are_gone_after_a_mutant() -> None:
    before = [play(seed) for seed in range(5)]
    for name in MUTANTS:
        explore(range(2), Search(name))
    assert [play(seed) for seed in range(5)] == before


def test_a_failure_tells_its_last_steps_and_how_to_replay_it(capsys: pytest.CaptureFixture[str]) -> None:
    failure = _first_finding("no-list")
    assert failure is not None
    story = failure.story(steps=5).splitlines()
    assert story[0] == f"seed {failure.seed}: {failure.text}"
    assert len(story) == 7
    assert main(["--seed", str(failure.seed), "--mutant", "no-list", "--trace", "5"]) == 1
    assert capsys.readouterr().out.splitlines()[:5] == story[1:6]
    with pytest.raises(Violation, match="I6"):
        play(failure.seed, Search("no-list"))


def test_the_command_counts_and_tells_by_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["20"]) == 0
    assert "20  histories" in capsys.readouterr().out
    assert main(["100", "--mutant", "no-read-back"]) == 1
    assert "broke a rule" in capsys.readouterr().out


def test_reports_add_up() -> None:
    whole, parts = explore(range(20)), Report()
    for start in (0, 10):
        parts.add(explore(range(start, start + 10)))
    assert (whole.histories, whole.stats, whole.failures) == (parts.histories, parts.stats, [])
    assert isinstance(whole.stats, Counter)
