"""The simulator itself: a seed decides everything, failures can be replayed, reports add up."""

from __future__ import annotations

from collections import deque

import pytest

from tests.model.__main__ import main
from tests.model.history import Search, explore, first_finding, play
from tests.model.invariants.violation import Violation


def test_a_seed_decides_everything() -> None:
    traces: list[deque[str]] = [deque(), deque()]
    stats = [play(7, trace=trace) for trace in traces]
    assert traces[0] == traces[1]
    assert stats[0] == stats[1] == play(7)


def test_a_failure_has_its_last_steps_and_the_command_that_replays_the_history(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failure = first_finding("no-list")
    assert failure is not None
    story = failure.story(steps=5).splitlines()
    assert story[0] == f"seed {failure.seed}: {failure.text}"
    assert len(story) == 7 and f"--seed {failure.seed} --mutant no-list" in story[-1]
    assert main(["--seed", str(failure.seed), "--mutant", "no-list", "--trace", "5"]) == 1
    assert capsys.readouterr().out.splitlines()[:5] == story[1:6]
    with pytest.raises(Violation) as caught:
        play(failure.seed, Search("no-list"))
    assert caught.value.rule == "I6"


def test_the_command_counts_histories_and_returns_1_after_a_violation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["20"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[0] == "20"
    assert main(["100", "--mutant", "no-read-back"]) == 1
    (failure,) = explore(range(100), Search("no-read-back")).failures
    assert failure.text in capsys.readouterr().out
