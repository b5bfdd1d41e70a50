"""What a row of the scoreboard is: rounds that inject faults by seed, and a bug that the row must catch."""

from __future__ import annotations

import enum
import tempfile
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.mutants import MUTANTS, planted


class Tier(enum.Enum):
    """How much is played: a slice in ``make test``, what fits half an hour, or a night."""

    SLICE = "slice"
    HALF_HOUR = "half-hour"
    NIGHTLY = "nightly"


@dataclass(frozen=True)
class Round:
    """One round.

    Attributes:
        seed: decides everything that the row can decide.
        folder: empty, of this round alone.
        plant: a planted bug; child processes are to have it as well.
    """

    seed: int
    folder: Path
    plant: str = ""


@dataclass(frozen=True)
class Row:
    """One kind of fault.

    Attributes:
        number: of the row in ``docs/scoreboard.md``.
        holds: what must hold, and what shows it.
        play: plays a round; returns how many faults it injected. Raises AssertionError when something does not hold.
        rounds: how many there are by tier; none without an entry.
        plant: a bug that must be caught, of `plants.MUTANTS` unless the row has its own.
        plant_rounds: within so many rounds.
        what: the planted bug in words, of a row that has its own.
        on_spark: whether the rounds run jobs on Spark.
        alone: whether a round needs the machine for itself.
    """

    number: int
    name: str
    fault: str
    holds: str
    play: Callable[[Round], int]
    rounds: dict[Tier, int]
    plant: str
    plant_rounds: int = 10
    on_spark: bool = False
    what: str = ""

    @property
    def plant_text(self) -> str:
        """The planted bug in words."""
        return self.what or MUTANTS[self.plant].what


@dataclass
class Result:
    """What rounds of a row found."""

    injected: int = 0
    rounds: int = 0
    violations: list[str] = field(default_factory=list)

    def add(self, other: Result) -> None:
        """Takes over what other rounds found."""
        self.injected += other.injected
        self.rounds += other.rounds
        self.violations += other.violations


def play(row: Row, seeds: Iterable[int], plant: str = "", limit: int = 3) -> Result:
    """Plays rounds until they are done, or so many have found a violation.

    Whatever a round raises counts as a violation: a row that could not be played shows nothing.
    """
    result = Result()
    for seed in seeds:
        result.rounds += 1
        with tempfile.TemporaryDirectory(prefix=f"scoreboard-{row.name}-", ignore_cleanup_errors=True) as folder:
            try:
                result.injected += row.play(Round(seed, Path(folder), plant))
            except Exception as e:
                result.violations.append(f"seed {seed}: {_text_of(e)}")
        if len(result.violations) >= limit:
            break
    return result


def caught(row: Row) -> str:
    """The first violation that the planted bug leads to; empty when it is missed."""
    with planted(row.plant if row.plant in MUTANTS else ""):
        found = play(row, range(row.plant_rounds), row.plant, limit=1).violations
    return found[0] if found else ""


def _text_of(error: Exception) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {error}"[:2000]
