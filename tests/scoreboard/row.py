"""A row of the scoreboard: a test that plays rounds of one kind of fault, and the planted bug that they must find."""

from __future__ import annotations

import random
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.mutants import MUTANTS, planted

TIERS = ("slice", "half-hour", "nightly")
"""How much is played: in `make test`, by `make scoreboard`, and with ``TIER=nightly``."""


class Round:
    """One round. `seed`: decides everything that the row can decide. `folder`: empty, and only this round's."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed = seed
        self.folder = folder
        self.rng = random.Random(seed)


Play = Callable[[Round], int]
"""Plays a round; returns how many faults it injected, and raises if something does not hold."""


@dataclass(frozen=True)
class Row:
    """Makes a test of a `Play`. Its docstring has two paragraphs: the fault, and what must hold.

    Attributes:
        number: of the row in ``docs/scoreboard.md``; rows of one number are variants of a fault.
        plays: how many rounds each of the `TIERS` plays.
        mutants: the planted bugs that must be found.
        within: the number of rounds in which each of them must be found.
        on_spark: whether the rounds run jobs on Spark.
    """

    number: int
    name: str
    plays: tuple[int, int, int]
    mutants: tuple[str, ...]
    within: int = 10
    on_spark: bool = False

    def __call__(self, play: Play) -> Callable[[Rounds], None]:
        """The test; ``conftest.py`` gives it its rounds."""

        @pytest.mark.row.with_args(self)
        def test(rounds: Rounds) -> None:
            rounds.play(play)

        test.__doc__ = play.__doc__
        return test


@dataclass(frozen=True)
class Rounds:
    """What a test of a row plays: one round, or rounds until one finds a planted bug.

    Attributes:
        played: the seed of the round, or the name of the planted bug.
        record: takes the results to the report, also from another process.
    """

    row: Row
    folder: Path
    played: int | str
    record: Callable[[str, object], None]

    def play(self, play: Play) -> None:
        """Plays. Raises what a round raises, and fails if no round finds the planted bug."""
        seed = self.played
        if isinstance(seed, str):
            self._find_mutant(play, seed)
            return
        try:
            injected = self._play_once(play, seed)
            assert injected or seed, "the first round injected no fault"
        except Exception as e:
            self.record("violation", _text_of(e, seed))
            e.add_note(f"repeat with: make scoreboard ROWS={self.row.name} SEED={seed}")
            raise
        self.record("injected", injected)

    def _find_mutant(self, play: Play, mutant: str) -> None:
        with planted(mutant):
            for seed in range(self.row.within):
                try:
                    self._play_once(play, seed)
                except Exception as e:
                    self.record("found", {MUTANTS[mutant].what: _text_of(e, seed)})
                    return
        pytest.fail(f"{self.row.within} rounds did not find {mutant}: {MUTANTS[mutant].what}")

    def _play_once(self, play: Play, seed: int) -> int:
        with tempfile.TemporaryDirectory(dir=self.folder, ignore_cleanup_errors=True) as folder:
            return play(Round(seed, Path(folder)))


def _text_of(error: Exception, seed: int) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    first_line = str(error).partition("\n")[0]
    return f"seed {seed}: {type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {first_line}"
