"""What the scoreboard says: ``docs/scoreboard.md`` for people, and ``docs/scoreboard.json``, from which it is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tests.scoreboard.row import Row


class Score(msgspec.Struct, frozen=True):
    """What became of a row.

    Attributes:
        caught: what showed the row's planted bug; an empty text is a bug that was missed.
        at, commit, machine: when, of what and where.
    """

    tier: str
    injected: int
    rounds: int
    violations: list[str]
    caught: str
    seconds: float
    at: str
    commit: str
    machine: str


Scores = Mapping[str, Score]
"""By the row's name."""


def headline(scores: Scores, rows: Sequence[Row]) -> str:
    """One sentence."""
    played = [row for row in rows if row.name in scores]
    kills = _injected(scores, [row for row in played if row.number in (2, 3, 4, 5)])
    histories = _injected(scores, [row for row in played if row.number == 1])
    violations = sum(len(score.violations) for score in scores.values())
    missed = sum(not score.caught for score in scores.values())
    return (
        f"{_injected(scores, played):,} faults injected, {kills:,} of them SIGKILLs of real processes and "
        f"{histories:,} simulated histories: {violations} violations. {len(scores)} planted bugs, {missed} missed."
    )


def page(scores: Scores, rows: Sequence[Row]) -> str:
    """The whole page."""
    played = [row for row in rows if row.name in scores]
    return "\n".join(
        [
            "# Scoreboard",
            "",
            f"**{headline(scores, rows)}**",
            "",
            "`make scoreboard` plays all of it again in half an hour on two cores, `make scoreboard "
            "TIER=nightly` plays more. `python -m tests.scoreboard --rows NAME` plays one row and writes it "
            "down here; with `--seed N` one round, which is not written down. A seed decides all that a test "
            "can decide, and not which process gets the processor.",
            "",
            "A violation is anything lost, doubled, not noticed, left over or told wrongly. The last column is the "
            "mistake that was put into the code to see that the row finds it. What a row looks at is told below, and "
            "why it is done like this in [design 0020](design/0020-scoreboard.md).",
            "",
            "| # | row | fault | injected | of them on Spark | violations | seeds | planted bug, which was |",
            "|---|---|---|---:|---:|---:|---|---|",
            *(_line(scores[row.name], row) for row in played),
            "",
            "## When and where",
            "",
            "| rows | tier | at | commit | machine |",
            "|---|---|---|---|---|",
            *_stamps(scores, played),
            "",
            "## What is looked at",
            "",
            *(f"- **{row.name}** ({row.number}): {row.holds}." for row in played),
            "",
            *_violations(scores),
        ]
    )


def _line(score: Score, row: Row) -> str:
    verdict = "found" if score.caught else "**missed**"
    on_spark = f"{score.injected:,}" if row.on_spark else "0"
    seeds = f"0 to {score.rounds - 1}" if score.rounds > 1 else "0"
    cells = [row.number, row.name, row.fault, f"{score.injected:,}", on_spark, len(score.violations), seeds]
    return f"| {' | '.join(map(str, cells))} | {row.plant_text}: {verdict} |"


def _stamps(scores: Scores, rows: Sequence[Row]) -> list[str]:
    """Rows that were played together are one line."""
    together: dict[tuple[str, str, str, str], list[str]] = {}
    for row in rows:
        score = scores[row.name]
        together.setdefault((score.tier, score.at, score.commit, score.machine), []).append(row.name)
    largest = max(map(len, together.values()), default=0)
    return [
        f"| {'all others' if len(together) > 1 and len(names) == largest else ', '.join(names)} | {tier} | {at} | "
        f"`{commit}` | {machine} |"
        for (tier, at, commit, machine), names in sorted(together.items(), key=lambda item: -len(item[1]))
    ]


def _violations(scores: Scores) -> list[str]:
    lines = [f"{name}: {text}" for name, score in scores.items() for text in score.violations]
    if not lines:
        return []
    return ["## Violations", "", *(f"- {line.splitlines()[0]}" for line in lines), ""]


def _injected(scores: Scores, rows: Sequence[Row]) -> int:
    return sum(scores[row.name].injected for row in rows)
