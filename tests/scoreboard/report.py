"""What the rows of the scoreboard found: ``docs/scoreboard.json``, and ``docs/scoreboard.md``, which is made of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

_PATH = re.compile(r"(/[\w.+-]+){2,}")


class Score(msgspec.Struct, kw_only=True):
    """The outcome of a row.

    Attributes:
        holds: what must hold.
        bug: the planted bug in words.
        found: the violation that showed the planted bug; empty if it was missed.
        more_bugs: further planted bugs in words, each with the violation that showed it.
        at, commit, machine: when, of what and where.
    """

    number: int
    fault: str
    holds: str
    on_spark: bool
    bug: str
    tier: str
    at: str
    commit: str
    machine: str
    injected: int = 0
    rounds: int = 0
    violations: list[str] = []
    found: str = ""
    more_bugs: dict[str, str] = {}
    seconds: float = 0.0

    @property
    def bugs(self) -> dict[str, str]:
        """All planted bugs in words, each with the violation that showed it; empty if it was missed."""
        return {self.bug: self.found, **self.more_bugs}

    def add(self, results: Mapping[str, Any], seconds: float) -> None:
        """Adds what one test of the row recorded."""
        self.seconds = round(self.seconds + seconds, 1)
        self.injected += results.get("injected", 0)
        self.rounds += "injected" in results or "violation" in results
        self.violations += [_brief(results["violation"])] if "violation" in results else []
        for bug, text in results.get("found", {}).items():
            if bug == self.bug:
                self.found = _brief(text)
            else:
                self.more_bugs[bug] = _brief(text)


Scores = Mapping[str, Score]
"""By the row's name."""


def read(docs: Path) -> dict[str, Score]:
    stored = docs / "scoreboard.json"
    return msgspec.json.decode(stored.read_bytes(), type=dict[str, Score]) if stored.exists() else {}


def write(docs: Path, scores: Scores) -> None:
    ordered = dict(sorted(scores.items(), key=lambda item: item[1].number))
    docs.mkdir(exist_ok=True)
    (docs / "scoreboard.json").write_bytes(msgspec.json.format(msgspec.json.encode(ordered), indent=2) + b"\n")
    (docs / "scoreboard.md").write_text(page(ordered))


def _brief(text: str) -> str:
    """A text without paths of this machine."""
    return _PATH.sub("…", text)[:200]


def headline(scores: Scores) -> str:
    kills = sum(score.injected for score in scores.values() if score.number in (2, 3, 4, 5))
    histories = sum(score.injected for score in scores.values() if score.number == 1)
    violations = sum(len(score.violations) for score in scores.values())
    missed = sum(not found for score in scores.values() for found in score.bugs.values())
    return (
        f"{sum(score.injected for score in scores.values()):,} faults injected, {kills:,} of them SIGKILLs of real "
        f"processes and {histories:,} simulated histories: {violations} violations. To check the "
        f"tests, a bug was planted in the code for each of {len(scores)} kinds of fault: {missed} were missed."
    )


def page(scores: Scores) -> str:
    violations = [f"- {name}: {text}" for name, score in scores.items() for text in score.violations]
    return "\n".join(
        [
            "# Scoreboard",
            "",
            f"**{headline(scores)}**",
            "",
            "`make scoreboard` runs all rows, which takes 25 to 45 minutes on two cores; `make scoreboard "
            "TIER=nightly` runs more rounds, and `ROWS=NAME,…` only these rows. All of them write this page. "
            "`ROWS=NAME SEED=N` repeats one round and writes nothing. The seed fixes every random choice of a test; "
            "the scheduling of processes "
            "is not reproducible.",
            "",
            "A violation is a row or file that is lost, duplicated or left over, or an error that is not detected or "
            "reported wrongly. The last column is the bug that was planted in the code to check that the row finds it. "
            "What each row checks is listed below; [design 0020](design/0020-scoreboard.md) has the reasons.",
            "",
            "| row | fault | injected | of them on Spark | violations | seeds | planted bug |",
            "|---|---|---:|---:|---:|---|---|",
            *(_line(name, score) for name, score in scores.items()),
            "",
            "## When and where",
            "",
            "| rows | tier | at | commit | machine |",
            "|---|---|---|---|---|",
            *_stamps(scores),
            "",
            "## What is checked",
            "",
            *(f"- **{name}**: {score.holds}" for name, score in scores.items()),
            "",
            *(["## Violations", "", *violations, ""] if violations else []),
        ]
    )


def _line(name: str, score: Score) -> str:
    on_spark = f"{score.injected:,}" if score.on_spark else "0"
    seeds = f"0 to {score.rounds - 1}" if score.rounds > 1 else "0"
    found = [f"{bug.removesuffix('.')}: {'found' if text else '**missed**'}" for bug, text in score.bugs.items()]
    fault, injected = score.fault.removesuffix("."), f"{score.injected:,}"
    cells = [name, fault, injected, on_spark, len(score.violations), seeds, "; ".join(found)]
    return f"| {' | '.join(map(str, cells))} |"


def _stamps(scores: Scores) -> list[str]:
    """Rows that were played together are one line."""
    together: dict[tuple[str, str, str, str], list[str]] = {}
    for name, score in scores.items():
        together.setdefault((score.tier, score.at, score.commit, score.machine), []).append(name)
    largest = max(map(len, together.values()), default=0)
    return [
        f"| {'all others' if len(together) > 1 and len(names) == largest else ', '.join(names)} | {tier} | {at} | "
        f"`{commit}` | {machine} |"
        for (tier, at, commit, machine), names in sorted(together.items(), key=lambda item: -len(item[1]))
    ]
