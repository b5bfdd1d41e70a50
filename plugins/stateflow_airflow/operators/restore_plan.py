"""The plan of a restore: rendered as Markdown for its approver, and parsed from an XCom."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from stateflow_airflow.failures import config_failure
from stateflow_airflow.operators.base import code_block, escape

if TYPE_CHECKING:
    from stateflow.checkpoint.restore.plan_document import RestorePlan, SinkChange, SourceChange, StateChange

_UNITS = ("B", "kB", "MB", "GB", "TB")


def as_markdown(plan: RestorePlan, notes: Sequence[str] = (), expected_plan: str = "") -> str:
    """Returns the plan as Markdown tables, with warnings for the approver.

    Args:
        plan: the plan.
        notes: further notes, in Markdown.
        expected_plan: what a plan that was shown before is compared by; see `plan_document.expected_plan_of`. Empty
            if none was shown.

    Raises ConfigError if `expected_plan` is not such a text.
    """
    from stateflow.checkpoint.restore.plan_document import describe_graph, describe_replay, describe_target

    parts = [
        _differences(plan, expected_plan) if expected_plan else "",
        f"**{escape(plan.job)}** is restored from checkpoint {plan.checkpoint_id} to **{escape(plan.target_label)}**, "
        f"{escape(describe_target(plan))}.",
        _savepoint(plan),
        _job_file(plan),
        _table(("state of", "action", "size now", "size at target", "parallelism"), map(_state, plan.states)),
        _table(("source", "now", "at target", "files read since", "still available"), map(_source, plan.sources)),
        _table(("sink", "table", "now", "at target", "rows removed", "rows restored"), map(_sink, plan.sinks)),
        _list(escape(line) for line in describe_graph(plan)),
        escape(describe_replay(plan)),
        _list([*_warnings(plan), *notes]),
        _job_file_difference(plan),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _differences(plan: RestorePlan, expected_plan: str) -> str:
    """Returns how a plan differs from the one that was shown before the DAG run; empty if it does not."""
    from stateflow.checkpoint.restore.plan_document import differing_parts

    found = differing_parts(plan, expected_plan)
    if not found:
        return ""
    intro = (
        "**This plan is not the one that was shown when the restore was requested**: that was made without the job "
        "file, or the job has changed since. These parts differ, and are now:"
    )
    return f"{intro}\n\n{_list(f'**{escape(part.value)}**: {escape(text)}' for part, text in found.items())}"


def _job_file_difference(plan: RestorePlan) -> str:
    if not plan.job_file_difference:
        return ""
    title = "**The job file is not the one of the newest run whose text is known**:"
    return f"{title}\n\n{code_block(plan.job_file_difference, 'diff')}"


def _savepoint(plan: RestorePlan) -> str:
    # Its name does not identify it: a user who may write to a job root can add another one with this name.
    mode = escape(plan.claim_mode.value)
    return f"**Savepoint**: {escape(plan.savepoint_path)}, claim mode {mode}" if plan.savepoint_path else ""


def _job_file(plan: RestorePlan) -> str:
    at = escape((plan.job_file_changed_at or "")[:19].replace("T", " "))
    other = f"; {escape(plan.code_difference)}" if plan.code_difference else ""
    return f"**Job file**: {escape(plan.job_file or '')}, changed at {at} UTC{other}"


def _state(change: StateChange) -> tuple[str, ...]:
    before, after = change.current_parallelism or "-", change.target_parallelism or "-"
    return (
        escape(change.uid),
        escape(change.action),
        "unknown" if change.current_bytes is None else _size(change.current_bytes),
        _size(change.target_bytes),
        f"{before}" if before == after else f"{before} → {after}",
    )


def _source(change: SourceChange) -> tuple[str, ...]:
    held = {True: "yes", False: "**no**", None: "unknown"}[change.available]
    files = "-" if change.files is None else f"{change.files:,}"
    return (
        escape(change.uid),
        escape(_short(change.current_offset)),
        escape(_short(change.target_offset)),
        files,
        held,
    )


def _sink(change: SinkChange) -> tuple[str, ...]:
    from stateflow.checkpoint.restore.plan_document import rows_removed_text

    if change.mode == "keep":
        return (
            escape(change.uid),
            escape(change.table or ""),
            f"version {change.current_version}",
            "unchanged",
            "0",
            "0",
        )
    then = "unchanged" if change.target_version is None else f"version {change.target_version}"
    return (
        escape(change.uid),
        escape(change.table or ""),
        f"version {change.current_version}",
        then,
        rows_removed_text(change),
        _count(change.rows_returned),
    )


def _warnings(plan: RestorePlan) -> list[str]:
    from stateflow.checkpoint.restore.plan_document import cautions

    return [
        f"**{escape(c.about)}**: {escape(c.text)}" if c.about else _sentence(escape(c.text)) for c in cautions(plan)
    ]


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    if not lines:
        return ""
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *lines])


def _short(offset: object) -> str:
    written = offset if isinstance(offset, str) else "" if offset is None else json.dumps(offset, separators=(",", ":"))
    text = "".join(c for c in written if c not in '{}"').strip()
    return f"{text[:57]}…" if len(text) > 58 else text or "-"


def _count(rows: int | None) -> str:
    return "unknown" if rows is None else f"{rows:,}"


def _size(count: float) -> str:
    for unit in _UNITS:
        if count < 1000 or unit == _UNITS[-1]:
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def parse_plan(plan: object) -> RestorePlan:
    """Returns the plan in what `StateflowRestorePlanOperator` returned, in its key ``plan``, or in either as JSON.

    Raises:
        PermanentFailure: `plan` is not a plan.
    """
    import msgspec

    from stateflow.checkpoint.restore.plan_document import RestorePlan
    from stateflow.types.decoders import json_decoder

    try:
        document = json.loads(plan) if isinstance(plan, str) else plan
        if isinstance(document, Mapping) and "markdown" in document:
            document = document["plan"]
        return json_decoder(RestorePlan).decode(msgspec.json.encode(document))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise config_failure(
            f"not the plan of a restore: {error}",
            "pass the output of StateflowRestorePlanOperator; its task may have been cleared since",
            plan=reprlib.repr(plan),
        ) from error
