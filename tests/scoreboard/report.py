"""What the scoreboard says, for people: ``docs/scoreboard.md``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.scoreboard.row import Result, Row, Tier


@dataclass
class Scores:
    """What was played.

    Attributes:
        results: by the row's name.
        caught: what showed each row's planted bug; an empty text is one that was missed.
        minutes: how long all of it took.
        stamp: date, commit and machine.
    """

    tier: Tier
    results: dict[str, Result] = field(default_factory=dict)
    caught: dict[str, str] = field(default_factory=dict)
    minutes: float = 0.0
    stamp: Mapping[str, object] = field(default_factory=dict)

    @property
    def injected(self) -> int:
        """Faults of all rows."""
        return sum(result.injected for result in self.results.values())

    @property
    def violations(self) -> list[str]:
        """Those of all rows."""
        return [f"{name}: {text}" for name, r in self.results.items() for text in r.violations]

    @property
    def missed(self) -> list[str]:
        """Rows whose planted bug did not show."""
        return [name for name, text in self.caught.items() if not text]


def headline(scores: Scores, rows: Sequence[Row]) -> str:
    """One sentence."""
    kills = _injected(scores, [row for row in rows if row.number in (2, 3, 4, 5)])
    return (
        f"{_count(scores.injected)} faults injected, {_count(kills)} of them SIGKILLs of real processes and "
        f"{_count(_injected(scores, [row for row in rows if row.number == 1]))} simulated histories: "
        f"{len(scores.violations)} violations. {len(scores.caught)} planted bugs, {len(scores.missed)} missed."
    )


def page(scores: Scores, rows: Sequence[Row]) -> str:
    """The whole page."""
    return "\n".join([
        "# Scoreboard", "", f"**{headline(scores, rows)}**", "",
        f"Tier *{scores.tier.value}*, {scores.minutes:.0f} minutes, {scores.stamp['at']}, commit "
        f"`{scores.stamp['commit']}`, {scores.stamp['machine']}. `make scoreboard` plays it again, `make scoreboard "
        "TIER=nightly` plays more; `python -m tests.scoreboard --rows NAME --seed N` plays one round, with each seed "
        "deciding all that a test can decide (when which process gets the processor it cannot).",
        "", "A violation is anything lost, doubled, not noticed, left over or told wrongly. The last column is the "
        "mistake that was put into the code to see that the row finds it. What a row looks at is told below, how it "
        "works in [tests/scoreboard](../tests/scoreboard/row.py).",
        "",
        "| # | row | fault | injected | of them on Spark | violations | seeds | planted bug, which was |",
        "|---|---|---|---:|---:|---:|---|---|",
        *(_line(scores, row) for row in rows if row.name in scores.results),
        "", "## What is looked at", "",
        *(f"- **{row.name}** ({row.number}): {row.holds}." for row in rows if row.name in scores.results),
        "",
        *_violations(scores),
    ])  # fmt: skip


def _line(scores: Scores, row: Row) -> str:
    found = scores.results[row.name]
    on_spark = _count(found.injected) if row.on_spark else "0"
    verdict = "found" if scores.caught.get(row.name) else "**missed**"
    if row.name not in scores.caught:
        verdict = "not tried"
    seeds = f"0 to {found.rounds - 1}" if found.rounds > 1 else "0"
    cells = [row.number, row.name, row.fault, _count(found.injected), on_spark, len(found.violations), seeds]
    return f"| {' | '.join(map(str, cells))} | {row.plant_text}: {verdict} |"


def _violations(scores: Scores) -> list[str]:
    if not scores.violations:
        return []
    told = [line.replace("\n", "\n  ") for line in scores.violations]
    return ["## Violations", "", *(f"- {line}" for line in told), ""]


def _injected(scores: Scores, rows: Sequence[Row]) -> int:
    return sum(scores.results[row.name].injected for row in rows if row.name in scores.results)


def _count(number: int) -> str:
    return f"{number:,}"
