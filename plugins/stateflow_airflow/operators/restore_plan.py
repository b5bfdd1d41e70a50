"""A restore's plan: as Markdown, for the person who has to approve it, and read back from an XCom."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stateflow_airflow.failures import misconfigured

if TYPE_CHECKING:
    from stateflow.checkpoint.proposal import Proposal, SinkChange, SourceChange, StateChange

_UNITS = ("B", "kB", "MB", "GB", "TB")


def as_markdown(plan: Proposal, notes: Sequence[str] = ()) -> str:
    """The plan in a few tables, and what a person should know before approving it.

    Args:
        notes: what else there is to know, in Markdown.
    """
    from stateflow.checkpoint.proposal import replayed

    parts = [
        f"**{plan.job}** goes from checkpoint {plan.checkpoint_id} back to **{_cell(plan.label)}**, of "
        f"{plan.target_at[:19].replace('T', ' ')} UTC.",
        _made_with(plan),
        _table(("state of", "what", "size now", "size then", "parallelism"), map(_state, plan.states)),
        _table(("source", "now", "then", "files read since then", "still there"), map(_source, plan.sources)),
        _table(("sink", "table", "now", "then", "rows since then", "rows restored"), map(_sink, plan.sinks)),
        _cell(replayed(plan)),
        _list([*_warnings(plan), *notes]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _made_with(plan: Proposal) -> str:
    if not plan.job_file:
        return ""
    at = plan.job_file_changed_at[:19].replace("T", " ")
    return f"**Job file**: {_cell(plan.job_file)}, of {at} UTC"


def _state(change: StateChange) -> tuple[str, ...]:
    before, after = change.from_parallelism or "-", change.to_parallelism or "-"
    return (
        change.uid,
        change.action,
        "unknown" if change.bytes_now is None else _size(change.bytes_now),
        _size(change.bytes),
        f"{before}" if before == after else f"{before} → {after}",
    )


def _source(change: SourceChange) -> tuple[str, ...]:
    held = {True: "yes", False: "**no**", None: "cannot tell"}[change.held]
    files = "-" if change.files is None else f"{change.files:,}"
    return change.uid, _short(change.now), _short(change.then), files, held


def _sink(change: SinkChange) -> tuple[str, ...]:
    if change.mode == "keep":
        return change.uid, change.table, f"version {change.now}", "kept as it is", "kept", "0"
    then = "as it is" if change.then is None else f"version {change.then}"
    return (
        change.uid,
        change.table,
        f"version {change.now}",
        then,
        _count(change.rows_removed),
        _count(change.rows_returned),
    )


def _warnings(plan: Proposal) -> list[str]:
    from stateflow.checkpoint.proposal import cautions

    return [
        f"**{_cell(c.about)}**: {_cell(c.says)}" if c.about else _sentence(_cell(c.says))
        for c in cautions(plan)
    ]


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


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


def as_proposal(plan: Any) -> Proposal:
    """What `StateflowRestorePlanOperator` returned, its plan, or that as JSON. Raises PermanentFailure."""
    import msgspec

    from stateflow.checkpoint.proposal import Proposal
    from stateflow.decoders import json_decoder

    try:
        document = json.loads(plan) if isinstance(plan, str) else plan
        if isinstance(document, Mapping) and "markdown" in document:
            document = document["plan"]
        return json_decoder(Proposal).decode(msgspec.json.encode(document))
    except (ValueError, KeyError, TypeError) as error:
        raise misconfigured(
            f"this is not a restore's plan: {error}",
            "give what StateflowRestorePlanOperator returned; its task may have been cleared since",
        ) from error
