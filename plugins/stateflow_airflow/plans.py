"""A restore's plan as Markdown, for the person who has to approve it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_UNITS = ("B", "kB", "MB", "GB", "TB")


def as_markdown(plan: Mapping[str, Any]) -> str:
    """The plan, as `StateflowRestorePlanOperator` returns it, in a few tables."""
    parts = [
        f"**{plan['job']}** goes from checkpoint {plan['checkpoint_id']} back to **{_cell(plan['label'])}**, of "
        f"{plan['target_at'][:19].replace('T', ' ')} UTC.",
        _table(("state of", "what", "size", "parallelism"), map(_state, plan["states"])),
        _table(("source", "now", "then", "still there"), map(_source, plan["sources"])),
        _table(("table of", "now", "then", "rows that go", "rows that come back"), map(_sink, plan["sinks"])),
        *_warnings(plan),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _state(change: Mapping[str, Any]) -> tuple[str, ...]:
    before, after = change.get("from_parallelism") or "-", change.get("to_parallelism") or "-"
    return (
        change["uid"],
        change["action"],
        _size(change.get("bytes", 0)),
        f"{before}" if before == after else f"{before} → {after}",
    )


def _source(change: Mapping[str, Any]) -> tuple[str, ...]:
    held = {True: "yes", False: "**no**", None: "cannot tell"}[change.get("held")]
    return change["uid"], _short(change["now"]), _short(change["then"]), held


def _sink(change: Mapping[str, Any]) -> tuple[str, ...]:
    if change["mode"] == "keep":
        return change["uid"], f"version {change['now']}", "kept as it is", "0", "0"
    then = "as it is" if change.get("then") is None else f"version {change['then']}"
    gone, back = change.get("rows_removed", 0), change.get("rows_returned", 0)
    return change["uid"], f"version {change['now']}", then, _count(gone), _count(back)


def _warnings(plan: Mapping[str, Any]) -> list[str]:
    lines = [
        f"**{_cell(sink['uid'])}: what others have written goes, too**: {_cell(other)}"
        for sink in plan["sinks"]
        for other in sink.get("others", ())
    ]
    lines += [
        f"**{_cell(left['uid'])}: the job has no such sink**, so its table keeps what came since; a version with it "
        "would write those rows a second time"
        for left in plan.get("left", ())
    ]
    lines += [
        f"**{_cell(source['uid'])} does not have everything any more** that came since: those rows do not come again"
        for source in plan["sources"]
        if source.get("held") is False
    ]
    dropped = [state["uid"] for state in plan["states"] if state["action"] == "dropped"]
    if dropped:
        lines.append(f"The state of {', '.join(map(_cell, dropped))} is dropped; the target still has it")
    if any(sink["mode"] == "keep" for sink in plan["sinks"]):
        lines.append(
            "Tables are kept: what comes of rows that are read a second time is in them a second time"
        )
    if plan.get("foreign"):
        lines.append("The savepoint is another job's")
    if undone := plan.get("dropped_checkpoints"):
        lines.append(f"Checkpoints that cannot be gone back to any more: {', '.join(map(str, undone))}")
    return ["\n".join(f"- {line}" for line in lines)] if lines else []


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    if not lines:
        return ""
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *lines])


def _cell(text: object) -> str:
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")


def _short(offset: str) -> str:
    text = "".join(c for c in offset if c not in '{}"').strip()
    return f"{text[:57]}…" if len(text) > 58 else text or "-"


def _count(rows: int | None) -> str:
    return "unknown" if rows is None else f"{rows:,}"


def _size(count: float) -> str:
    for unit in _UNITS:
        if count < 1000 or unit == _UNITS[-1]:
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
