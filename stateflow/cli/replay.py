"""The command replay, which runs the batches of a checkpoint again, and the text of its report."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time

import click

from stateflow.cli.common import (
    JOB_OF_REQUEST,
    ROOT,
    count_of,
    json_option,
    one_line,
    print_json,
    print_text,
    refuse,
    short_offset,
    with_request,
    with_settings,
)
from stateflow.outputs import Offset, OptionalId, OptionalText, Timestamp
from stateflow.replay.key_trace import KeyDebugger, KeyRequest, TracedCall
from stateflow.replay.report import EmittedRows, KeyReport, ReplayReport
from stateflow.replay.run import DEFAULT_ROWS, ReplayRequest
from stateflow.replay.run import replay as run_replay
from stateflow.replay.state_diff import EntryChange, StateChanges


@dataclass(frozen=True)
class ReplayedBatch:
    """A batch that ran again.

    Attributes:
        processed_at: its processing time.
        rows_in: rows that the sources had.
        start_offsets: the positions of the sources before it, by uid.
        end_offsets: the positions of the sources after it, by uid.
    """

    processed_at: Timestamp
    rows_in: int
    start_offsets: dict[str, Offset]
    end_offsets: dict[str, Offset]


@dataclass(frozen=True)
class ReplayedOutput:
    """Rows that a sink would have published.

    Attributes:
        sink: uid of the sink.
        row_count: number of rows.
        rows: the first of them, by column.
    """

    sink: str
    row_count: int
    rows: object


@dataclass(frozen=True)
class ReplayedEntry:
    """An entry of state that differs.

    Attributes:
        operator: uid of the operator.
        state: name of the state; ``_timers`` for a timer.
        change: ``added``, ``removed`` or ``changed``; ``same`` for an entry of the requested key that does not differ.
        key: values of the key columns; empty for operator state.
        namespace: None without a namespace; the time domain of a timer.
        map_key: key in a map state; position of an element of operator state; None for other states.
        before: the value before; None without an entry.
        after: the value after; None without an entry.
    """

    operator: str
    state: str
    change: str
    key: object
    namespace: object
    map_key: object
    before: object
    after: object


@dataclass(frozen=True)
class ReplayedCount:
    """How many entries of a state differ in one way.

    Attributes:
        operator: uid of the operator.
        state: name of the state.
        change: ``added``, ``removed`` or ``changed``.
        entries: their number.
    """

    operator: str
    state: str
    change: str
    entries: int


@dataclass(frozen=True)
class ReplayedState:
    """The differences between two states.

    Attributes:
        counts: numbers of entries that differ.
        changes: the first of them.
    """

    counts: list[ReplayedCount]
    changes: list[ReplayedEntry]


@dataclass(frozen=True)
class ReplayedCall:
    """A call of an operator's function for the key.

    Attributes:
        method: name of the method.
        given: the row, or the time of a timer.
        emitted: the first rows that it emitted to the main output.
        side_outputs: the first rows that it emitted to each side output, by tag.
        error: the exception that it raised; empty without one.
        row_count: number of rows that it emitted to all outputs.
    """

    method: str
    given: object
    emitted: object
    side_outputs: object
    error: OptionalText
    row_count: int


@dataclass(frozen=True)
class ReplayedKey:
    """Calls and state of one key of an operator.

    Attributes:
        operator: uid of the operator.
        key: values of the key columns.
        calls: the first calls for the key, in order.
        call_count: number of calls.
        state: the first entries of the key's state.
        entry_count: number of entries.
    """

    operator: str
    key: object
    calls: list[ReplayedCall]
    call_count: int
    state: list[ReplayedEntry]
    entry_count: int


@dataclass(frozen=True)
class ReplayOutput:
    """The result of a replay.

    Attributes:
        checkpoint_id: id of the checkpoint whose batches ran again.
        base_checkpoint_id: id of the checkpoint that they started from; 0 for none.
        batches: the batches, oldest first.
        deviation: what differs from the original run, in words; empty for nothing that is known.
        emitted: the rows for each sink.
        state: the changes of the state by the batches.
        same: whether the replay led to the state that the checkpoint has.
        difference: the differences of the resulting state from the checkpoint's.
        keys: what the operators did for the key of ``--key``; empty without one.
    """

    checkpoint_id: int
    base_checkpoint_id: OptionalId
    batches: list[ReplayedBatch]
    deviation: OptionalText
    emitted: list[ReplayedOutput]
    state: ReplayedState
    same: bool
    difference: ReplayedState
    keys: list[ReplayedKey]


@click.command()
@JOB_OF_REQUEST
@ROOT
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    required=True,
    metavar="N",
    help="Id of the checkpoint whose batch runs again: what the job did between the checkpoint before it and N.",
)
@click.option(
    "--rows",
    "max_rows",
    type=click.IntRange(min=0),
    default=DEFAULT_ROWS,
    show_default=True,
    metavar="COUNT",
    help="Rows of each sink, changes of state, and calls for a key, to print.",
)
@click.option(
    "--key",
    "values",
    multiple=True,
    metavar="VALUE",
    help="Show one key only: its rows, timers, emitted rows and state. Once for each key column, in their order, or as "
    "for state get; '[null]' for a null.",
)
@click.option("--operator", default="", metavar="UID", help="With --key: only this operator. Default: all that fit.")
@click.option(
    "--pdb",
    "debug",
    is_flag=True,
    help="With --key: run the batch in this process, and stop in Python's debugger in the first call for the key.",
)
@with_settings
@json_option(ReplayOutput)
@with_request(ReplayRequest)
def replay(request: ReplayRequest, values: tuple[str, ...], operator: str, debug: bool, as_json: bool) -> None:
    """Run a batch again, from the checkpoint before it, and print what it emits and how it changes the state.

    Nothing is published, and the job root does not change: state and rows go to a scratch folder that is removed at the
    end. Runs of the job may continue meanwhile. The source must still have the rows. The resulting state is compared
    with that of checkpoint N.
    """
    if (operator or debug) and not values:
        refuse("--operator and --pdb need a key", "pass --key VALUE")
    key, debugger = KeyRequest(values, operator) if values else None, KeyDebugger() if debug else None
    report = run_replay(dataclasses.replace(request, key=key, debugger=debugger))
    if as_json:
        print_json(report_output(report))
    else:
        print_report(report, request.job_file.stem)


_INDENT = "  "
_LINE = 4000
"""Characters of a line: a value may have megabytes, of which a terminal shows nothing else for minutes."""


def print_report(report: ReplayReport, job: str) -> None:
    """Prints a report as text."""
    base = f"checkpoint {report.base}" if report.base else "no state"
    how = report.deviation or "as recorded"
    print_text(f"batch {report.batch} of {job}, from {base}: {count_of(len(report.batches), 'batch')}, {how}")
    for batch in report.batches:
        print_text(f"{_INDENT}{count_of(batch.rows_in, 'row')} at {batch.processing_time}")
        for uid, end in batch.end.items():
            start = batch.start.get(uid, "-")
            moved = short_offset(end) if start == end else f"{short_offset(start)} to {short_offset(end)}"
            print_text(f"{_INDENT}{_INDENT}source {uid}: {moved}")
    if report.keys:
        for key in report.keys:
            _print_key(key)
    else:
        for emitted in report.emitted:
            _print_emitted(emitted)
        _print_changes(report.state)
    _print_difference(report)


def _print_key(key: KeyReport) -> None:
    _print_line(f"operator {key.operator}, key {text_of(list(key.key))}: {count_of(key.call_count, 'call')}")
    for call in key.calls:
        _print_call(call)
    _print_left(key.call_count - len(key.calls), "calls", 1)
    print_text(f"{_INDENT}state:{'' if key.state else ' none'}")
    for change in key.state:
        _print_line(f"{change.state}{_place(change)}: {values_text(change)}", 2)
    _print_left(key.entry_count - len(key.state), "entries", 2)


def _print_call(call: TracedCall) -> None:
    _print_line(f"{call.method} {text_of(call.given)}", 1)
    for row in call.emitted:
        _print_line(f"emits {text_of(row)}", 2)
    for tag, rows in (call.side_outputs or {}).items():
        for row in rows:
            _print_line(f"emits to {tag} {text_of(row)}", 2)
    _print_left(call.rows_left, "rows", 2)
    if call.error:
        _print_line(f"raises {call.error}", 2)


def _print_line(text: str, depth: int = 0) -> None:
    """Prints one line, of which the end is left out if it is long."""
    left = len(text) - _LINE
    shown = f"{one_line(text[:_LINE])}… and {left:,} more characters: --json has all" if left > 0 else one_line(text)
    print_text(_INDENT * depth + shown)


def _print_left(count: int, what: str, depth: int) -> None:
    if count:
        print_text(f"{_INDENT * depth}and {count:,} more {what}: --rows COUNT shows them")


def _place(change: EntryChange) -> str:
    return "".join(f" {text_of(part)}" for part in (change.namespace, change.map_key) if part is not None)


def _print_emitted(emitted: EmittedRows) -> None:
    print_text(f"would publish to {emitted.sink}: {count_of(emitted.count, 'row')}")
    for row in emitted.rows:
        _print_line(text_of(row), 1)
    _print_left(emitted.count - len(emitted.rows), "rows", 1)


def _print_changes(diff: StateChanges) -> None:
    if not diff.counts:
        print_text("no state changed")
    for (operator, state), kinds in _by_state(diff).items():
        print_text(f"state {state} of {operator}: {kinds}")
        for change in diff.changes:
            if (change.operator, change.state) == (operator, state):
                _print_line(change_text(change), 1)
    _print_left(diff.counts.total() - len(diff.changes), "changes", 1)


def _by_state(diff: StateChanges) -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], list[str]] = {}
    for (operator, state, kind), count in sorted(diff.counts.items()):
        found.setdefault((operator, state), []).append(f"{count:,} {kind}")
    return {key: ", ".join(texts) for key, texts in found.items()}


def _print_difference(report: ReplayReport) -> None:
    if report.is_same:
        print_text(f"the state equals the state of checkpoint {report.batch}")
        return
    count = report.difference.counts.total()
    print_text(
        f"the state differs from the state of checkpoint {report.batch} in {count:,} entries: the job file, its "
        "settings or the input have changed, or a function depends on something else"
    )
    for change in report.difference.changes:
        _print_line(f"{change.operator}, {change.state}: {change_text(change)}", 1)
    _print_left(report.difference.counts.total() - len(report.difference.changes), "differences", 1)


def change_text(change: EntryChange) -> str:
    """Returns a change of state in words."""
    place = text_of(list(change.key)) if change.key else ""
    return f"{place}{_place(change)}: {values_text(change)}".strip()


def values_text(change: EntryChange) -> str:
    """Returns the values of an entry before and after."""
    if change.kind in ("added", "same"):
        return text_of(change.after) + ("" if change.kind == "added" else ", unchanged")
    if change.kind == "removed":
        return f"{text_of(change.before)}, removed"
    return f"{text_of(change.before)} -> {text_of(change.after)}"


def text_of(value: object) -> str:
    """Returns a value as JSON."""
    return json.dumps(plain(value), ensure_ascii=False)


def plain(value: object) -> object:
    """Returns a value as JSON can express it: bytes in Base64, times in ISO 8601, other values as texts."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else text_of(key): plain(each) for key, each in value.items()}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    return [plain(each) for each in value] if isinstance(value, Iterable) else str(value)


def report_output(report: ReplayReport) -> ReplayOutput:
    """Returns a report for JSON."""
    return ReplayOutput(
        report.batch,
        report.base,
        [ReplayedBatch(b.processing_time, b.rows_in, b.start, b.end) for b in report.batches],
        report.deviation,
        [ReplayedOutput(e.sink, e.count, plain(e.rows)) for e in report.emitted],
        _state_output(report.state),
        report.is_same,
        _state_output(report.difference),
        [_key_output(key) for key in report.keys],
    )


def _state_output(diff: StateChanges) -> ReplayedState:
    counts = [ReplayedCount(*place, count) for place, count in sorted(diff.counts.items())]
    return ReplayedState(counts, [_entry_output(change) for change in diff.changes])


def _entry_output(change: EntryChange) -> ReplayedEntry:
    values = (list(change.key), change.namespace, change.map_key, change.before, change.after)
    return ReplayedEntry(change.operator, change.state, change.kind, *map(plain, values))


def _key_output(key: KeyReport) -> ReplayedKey:
    calls = [
        ReplayedCall(c.method, plain(c.given), plain(c.emitted), plain(c.side_outputs or {}), c.error, c.count)
        for c in key.calls
    ]
    state = [_entry_output(change) for change in key.state]
    return ReplayedKey(key.operator, plain(list(key.key)), calls, key.call_count, state, key.entry_count)
