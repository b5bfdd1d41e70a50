"""The commands status and history, and the text of a job's timeline.

The timeline has one line per record, and a graph of the branches that restores have left. The leftmost column shows the
history of the job's current state. The columns to its right show the branches that restores have undone, and forks,
which continue as other jobs. A branch to which one restore returned, and which a later restore has undone, is on the
right.
"""

from __future__ import annotations

import sys
import textwrap
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from stateflow import operations
from stateflow.checkpoint.log.documents import (
    ABORTED,
    ActionRecord,
    CheckpointRecord,
    Record,
    is_position,
    seq_of,
    sort_records,
)
from stateflow.checkpoint.restore.plan_document import RESTORE_OPEN
from stateflow.cli.common import (
    JOB_FILE,
    ROOT,
    add_row,
    count_of,
    human_bytes,
    in_utc,
    json_option,
    one_line,
    point_label,
    print_json,
    print_text,
    short_offset,
    to_seconds,
    with_settings,
)
from stateflow.config.sources import SettingsLayer
from stateflow.errors import StateflowError
from stateflow.operations import CheckpointEntry, Entry, JobCode
from stateflow.operations.health import Health, describe_with_health
from stateflow.outputs import Inline, OptionalText
from stateflow.requesters import describe_requester
from stateflow.runtime.backlog import NOT_MEASURED, JobBacklog, SourceBacklog
from stateflow.runtime.watermarks import waiting_texts

_NEWEST = 10
"""Number of checkpoints and skipped files that are shown."""
_NOT_STORED = f"{NOT_MEASURED}: add --job JOB.py"


@dataclass(frozen=True)
class JobStatus:
    """Status of a job, with its newest points.

    Attributes:
        description: status of the job.
        health: its state in a word, as far as the job root tells.
        restored_tables: with ``--job``, whether an incomplete restore has restored each table, by uid of the sink.
        backlog: with ``--job``, how much input waits; otherwise, how much waited when a run last measured it
            (`measured_at`). None if it is not known.
        backlog_unknown: why it is not known; empty otherwise.
        points: the newest checkpoints, also aborted ones, and restores, oldest first.
    """

    description: Inline[operations.JobDescription]
    health: Health
    restored_tables: dict[str, bool]
    backlog: JobBacklog | None
    backlog_unknown: OptionalText
    points: tuple[Entry, ...]


@click.command()
@ROOT
@click.option(
    "--job",
    type=JOB_FILE,
    metavar="JOB.py",
    help="Job file; used to measure how much input waits, and which tables an incomplete restore has restored.",
)
@with_settings
@json_option(JobStatus)
def status(job_root: str, job: Path | None, layers: tuple[SettingsLayer, ...], as_json: bool) -> None:
    """Show the position of a job and its sources, its newest checkpoints and its failures."""
    measured, unknown = (None, _NOT_STORED) if job is None else _measure_backlog(job_root, job, layers)
    found, health, stored = describe_with_health(job_root, measured)
    backlog = stored if job is None else measured
    points = tuple(operations.list_points(job_root, _NEWEST))
    restored: dict[str, bool] = {}
    if job is not None and found.restoring is not None:
        restored = operations.read_restored_tables(job_root, JobCode(job, layers))
    if as_json:
        print_json(JobStatus(found, health, restored, backlog, "" if backlog else unknown, points))
        return
    restore = _incomplete_restore(found.restoring, restored)
    waits = [] if job is None and backlog is None else describe_backlog(backlog, unknown)
    if job is None and backlog is not None:
        waits = [f"{line}, as of {in_utc(backlog.measured_at)}" for line in waits]
    name, *position = _position(found)
    lines = [name, f"health: {health.word.value}", *position, *waits, *restore]
    for line in [*lines, *map(_background_failure, found.background), *_skipped(found)]:
        print_text(one_line(line))
    if points:
        Console().print(_point_table(points))
    for point in points:
        if isinstance(point, CheckpointEntry) and point.record.status == ABORTED:
            print_text(f"aborted at {in_utc(point.record.ended_at)}: {point.record.failure}")
    if any(point.undone for point in points):
        print_text("○  undone by a restore to an earlier point")


def _measure_backlog(job_root: str, job: Path, layers: tuple[SettingsLayer, ...]) -> tuple[JobBacklog | None, str]:
    """Returns the backlog; None and why if it cannot be measured: the rest of the status does not need the job file."""
    try:
        return operations.measure_backlog(job_root, JobCode(job, layers)), ""
    except StateflowError as e:
        return None, f"[{e.code}] {e.sentence}"


def describe_backlog(backlog: JobBacklog | None, unknown: str) -> list[str]:
    """Returns the lines about the input that waits."""
    if backlog is None:
        return [f"input that waits: unknown: {unknown}"]
    needed = "" if not backlog.catch_up_ms else f", {_minutes(backlog.catch_up_ms / 1000)} at the rate of the last runs"
    total = [] if len(backlog.sources) == 1 else [f"input that waits: {_rows(backlog.rows, backlog.exact)}{needed}"]
    needed = needed if len(backlog.sources) == 1 else ""
    return [*total, *(f"source {each.uid} has waiting: {_waiting(each)}{needed}" for each in backlog.sources)]


def _waiting(source: SourceBacklog) -> str:
    numbers = [
        "" if source.files is None else "1 file" if source.files == 1 else f"{source.files:,} files",
        "" if source.rows is None else _rows(source.rows, source.exact),
        "" if source.size_bytes is None else human_bytes(source.size_bytes),
        f"since {in_utc(source.oldest_at)}" if source.oldest_at else "",
    ]
    known = ", ".join(filter(None, numbers))
    return "; ".join(filter(None, [known or "unknown", source.unknown]))


def _rows(rows: int | None, exact: bool) -> str:
    if rows is None:
        return "an unknown number of rows"
    return f"{'' if exact or not rows else 'about '}{rows:,} {'row' if rows == 1 else 'rows'}"


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds / 60:,.0f} min"


def _position(found: operations.JobDescription) -> list[str]:
    return [
        f"job {found.job} ({found.job_uuid})" + (f", {found.origin}" if found.origin else ""),
        f"at {found.label}, {f'newest run {found.run}, ' if found.run else ''}retained: "
        f"{', '.join(map(str, found.retained_checkpoint_ids)) or 'none'}",
        *_newest_run(found),
        *_failed_start(found),
        *_drained(found),
        *waiting_texts(found.waiting),
        *(f"source {uid} at {short_offset(offset)}" for uid, offset in found.offsets.items()),
        *map(_claimed, found.claimed_savepoints),
    ]


def _claimed(claimed: operations.Claimed) -> str:
    until = f"as long as checkpoint {claimed.checkpoint_id} is kept"
    return f"claims savepoint {claimed.name}, {until if claimed.checkpoint_id else 'not completed'}: {claimed.path}"


def _newest_run(found: operations.JobDescription) -> list[str]:
    if found.failure is not None:
        failure = found.failure
        return [f"the newest run failed at {in_utc(failure.failed_at)}: [{failure.code}] {failure.message}"]
    if found.restore_open:
        return [RESTORE_OPEN]
    if not found.run:
        return ["no run has started yet"]
    if found.progress is not None:
        at = found.progress
        return [
            f"the newest run has not ended: at {in_utc(at.reported_at)} it was in batch {at.ordinal}, since "
            f"{in_utc(at.batch_started_at)}, after {_rows(at.rows_in, exact=True)}, on {at.driver}"
        ]
    return ["the newest run has not ended: it is running, or it was killed"] if found.run_open else []


def _failed_start(found: operations.JobDescription) -> list[str]:
    failed = found.failed_start
    return [f"a start failed at {in_utc(failed.failed_at)}: [{failed.code}] {failed.message}"] if failed else []


def _drained(found: operations.JobDescription) -> list[str]:
    return [f"checkpoint {found.checkpoint_id} was drained: its timers fired early"] if found.drained else []


def _background_failure(failure: operations.BackgroundFailure) -> str:
    times = "once" if failure.failures == 1 else f"{failure.failures} times"
    return (
        f"background work: {failure.work} failed {times} in the newest run, most recently at "
        f"{in_utc(failure.failed_at)}: [{failure.code}] {failure.message}"
    )


def _incomplete_restore(pending: operations.PendingRestore | None, restored: dict[str, bool]) -> list[str]:
    if pending is None:
        return []
    requester = (
        f", requested by {describe_requester(pending.by)} at {in_utc(pending.requested_at)}" if pending.by else ""
    )
    reason = f" ({pending.reason})" if pending.reason else ""
    done = {True: ": restored", False: ": NOT YET"}
    tables = [
        f"  table of {uid} "
        + ("keeps its content" if version is None else f"to version {version}")
        + (done[restored[uid]] if uid in restored else "")
        for uid, version in pending.tables.items()
    ]
    hint = []
    if tables and not restored:
        number = f"{len(pending.restored_tables)} of {count_of(len(tables), 'table')}"
        hint = [f"  {number} reported as restored; to see which of them are, add --job JOB.py"]
    return [
        f"INCOMPLETE: the restore to {pending.target_label}{requester}{reason}",
        *tables,
        *hint,
        "  the next run, or the same stateflow restore --execute, completes it first",
    ]


def _skipped(found: operations.JobDescription) -> list[str]:
    if not found.quarantined_count:
        return []
    newest = found.quarantined[-_NEWEST:]
    more = f", the newest {len(newest)}" if found.quarantined_count > len(newest) else ""
    return [
        f"{found.quarantined_count} corrupt input files were skipped{more}:",
        *(line for q in newest for line in (f"  {in_utc(q.quarantined_at)}  {q.source}: {q.file}", f"    {q.error}")),
    ]


def _point_table(points: Sequence[Entry]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("checkpoint", "run", "ended (UTC)", "ms", "rows", "increment", "full", "files"):
        table.add_column(title, justify="right", no_wrap=True)
    for point in points:
        add_row(table, _label(point), *_cells(point.record))
    return table


def _cells(record: Record) -> tuple[str, ...]:
    if isinstance(record, CheckpointRecord):
        sizes = human_bytes(record.increment_bytes), human_bytes(record.full_bytes)
        figures = f"{record.duration_ms:.0f}", f"{record.rows_in:,}", *sizes, str(record.files)
        return str(record.run), to_seconds(record.ended_at), *figures
    size = human_bytes(record.size_bytes or 0)
    return "-", to_seconds(record.ended_at), f"{record.duration_ms or 0:.0f}", "-", "-", size, "-"


def _label(point: Entry) -> str:
    label = point_label(point)
    return f"○ {label}" if point.undone else label


@click.command()
@ROOT
@click.option("--newest", type=click.IntRange(min=1), default=50, show_default=True, help="Number of records to show.")
@json_option(Entry, lines=True)
def history(job_root: str, newest: int, as_json: bool) -> None:
    """Show the history of a job as a timeline with branches: checkpoints, savepoints, restores and forks.

    Records that are not as the job's log recorded them are marked. Exit codes: 0 none was changed; 4 records were
    changed or deleted.
    """
    # Checkpoints name their runs.
    found = operations.timeline(job_root, newest, with_runs=as_json)
    if as_json:
        for entry in found.entries:
            print_json(entry)
    else:
        width = Console().width if sys.stdout.isatty() else None
        records = [entry.record for entry in found.entries]
        for line in draw_timeline(records, width, [entry.integrity or "verified" for entry in found.entries]):
            print_text(line)
    # Last, so that the records are shown in any case.
    if found.changed:
        raise found.changed


_MARKS = {
    "savepoint": "◆",
    "restore": "↶",
    "rewind": "↶",
    "fork": "⑂",
    "dispose": "✕",
    "retention": "✕",
    "stop": "■",
    "relocate": "→",
    "rejection": "⊘",
    "failed-start": "✗",
}
_INTERNAL_FACTS = (
    "restored_checkpoint_id",
    "checkpoint_id",
    "savepoint_id",
    "path",
    "request_id",
    "parent_job_uuid",
    "generation",
)
"""Facts that only programs need."""
_SHORT_NAMES = {
    "target_label": "to",
    "previous_checkpoint_id": "from checkpoint",
    "undone_checkpoint_ids": "undone",
    "replaced_by_seq": "replaced by",
}
"""Names of facts in the text."""
_LEGEND = "●  part of the current state    ○  undone by a restore to an earlier point"
_INDENT = " " * 21
"""Indentation of continued lines: the width of the timestamp."""
_MIN_WIDTH = 50
"""Smallest width of a record's text, however many branches the graph has."""


def draw_timeline(records: Sequence[Record], width: int | None = None, integrity: Sequence[str] = ()) -> list[str]:
    """Returns the lines of the timeline, oldest record first.

    Args:
        records: the records, in any order.
        width: columns of the terminal; longer texts are wrapped. None for no limit.
        integrity: for each record ``verified``, or how it is marked; empty for no marks.
    """
    if not records:
        return ["no records yet"]
    marks = {id(record): mark for record, mark in zip(records, integrity, strict=bool(integrity)) if mark != "verified"}
    records = sort_records(records)
    tree = _tree(records)
    graph = _graph(records, tree)
    across = max(len(drawn) for drawn, _ in graph) + 2
    result = []
    for record, (drawn, below) in zip(records, graph, strict=True):
        text = _text(record) + (f" [{marks[id(record)]}]" if id(record) in marks else "")
        first, *more = _parts(text, width - across if width else len(text))
        result += [f"{drawn:<{across}}{first}", *(f"{below:<{across}}{part}" for part in more)]
    if tree.undone:
        result += ["", _LEGEND]
    return [one_line(line) for line in result]


# -- ancestry ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tree:
    """The ancestry of records; a row is the index of a record.

    Attributes:
        parent: the row that each row was derived from; None when that is not among the records.
        points: rows of states that the job was in.
        live: the points that the present state was derived from, itself included.
        forks: rows that other jobs begin with.
        older: rows whose parent is older than the first record.
    """

    parent: Sequence[int | None]
    points: Sequence[int]
    live: frozenset[int]
    forks: frozenset[int]
    older: frozenset[int]

    @property
    def undone(self) -> frozenset[int]:
        """Points that are not part of the current state."""
        return frozenset(self.points) - self.live


def _tree(records: Sequence[Record]) -> _Tree:
    """Finds the parent of each record."""
    points = [row for row, r in enumerate(records) if is_position(r)]
    seqs = [seq_of(records[row]) for row in points]
    bases = [_base(r) for r in records]
    parent: list[int | None] = []
    for row, record in enumerate(records):
        # A run that was killed after its commit has left no record of the checkpoint: the point before it is used.
        base, before = bases[row], bisect_left(points, row)
        found = min(before, bisect_right(seqs, seq_of(record) if base is None else base))
        parent.append(points[found - 1] if found else None)
    forks = frozenset(
        row for row, r in enumerate(records) if isinstance(r, ActionRecord) and r.kind == "fork"
    ) - frozenset(points)
    older = frozenset(row for row, base in enumerate(bases) if base and parent[row] is None)
    return _Tree(parent, points, _path(parent, points), forks, older)


def _base(record: Record) -> int | None:
    """Returns the checkpoint that was restored or forked; 0 for another job's, None when the job just continues."""
    if isinstance(record, CheckpointRecord) or "restored_checkpoint_id" not in record.facts:
        return None
    return record.number("restored_checkpoint_id") or 0


def _path(parent: Sequence[int | None], points: Sequence[int]) -> frozenset[int]:
    """Returns the newest point and its ancestors."""
    path = set()
    row = points[-1] if points else None
    while row is not None:
        path.add(row)
        row = parent[row]
    return frozenset(path)


# -- lines and columns ------------------------------------------------------------------------------------------------


@dataclass
class _Line:
    """Consecutive records without a restore between them.

    Attributes:
        base: the row at which the line leaves another one; None when that is not among the records.
        first, last: rows between which the line is drawn.
        tip: the newest point of the line; None for a fork.
        column: 0 for the line of the present state.
    """

    base: int | None
    first: int
    last: int
    tip: int | None = None
    column: int = 0
    rows: list[int] = field(default_factory=list)

    def is_separate(self, other: _Line) -> bool:
        """Whether both lines can share a column without looking like one line."""
        return self.first > other.last + 1 or other.first > self.last + 1


def _lines(tree: _Tree) -> list[_Line]:
    """Returns the line of the present state, then the others in the order of their first rows."""
    start = min(tree.live, default=0)
    live = _Line(None, 0 if start in tree.older else start, len(tree.parent) - 1)
    lines, line_of = [live], dict.fromkeys(tree.live, live)
    points = frozenset(tree.points)
    for row in range(len(tree.parent)):
        line = _joined(row, tree, line_of, live)
        if line is None:
            line = _begun(row, tree)
            lines.append(line)
        line.rows.append(row)
        line.last = max(line.last, row)
        if row in points:
            line.tip, line_of[row] = row, line
    return lines


def _joined(row: int, tree: _Tree, line_of: Mapping[int, _Line], live: _Line) -> _Line | None:
    """Returns the line that a row continues; None when the row begins a new one."""
    if row in tree.live:
        return live
    parent = tree.parent[row]
    line = live if parent is None else line_of[parent]
    if row in tree.forks:
        return None
    # The points of the live line are known. Another line is continued by the first row derived from its newest point.
    is_undone = row in tree.undone
    return line if not is_undone or (line is not live and line.tip == parent) else None


def _begun(row: int, tree: _Tree) -> _Line:
    """Returns a new line that begins with a row."""
    parent = tree.parent[row]
    first = parent if parent is not None else 0 if row in tree.older else row
    return _Line(parent, first, row)


def _assign_columns(lines: Sequence[_Line]) -> None:
    """Assigns each line the leftmost column that is free over its whole length."""
    placed: list[_Line] = []
    for line in sorted(lines[1:], key=lambda x: (x.first, x.rows[0])):
        line.column = next(
            column
            for column in range(1, len(lines) + 1)
            if all(line.is_separate(other) for other in placed if other.column == column)
        )
        placed.append(line)


# -- drawing ----------------------------------------------------------------------------------------------------------


def _graph(records: Sequence[Record], tree: _Tree) -> list[tuple[str, str]]:
    """Returns, for each record, the graph of its first line and of the lines that continue its text."""
    lines = _lines(tree)
    _assign_columns(lines)
    width = 2 * max(line.column for line in lines) + 1
    line_of = {row: line for line in lines for row in line.rows}
    cells, below = ([[" "] * width for _ in records] for _ in range(2))
    for line in lines:
        for row in range(line.first, line.last + 1):
            cells[row][2 * line.column] = "│"
            below[row][2 * line.column] = "│" if row < line.last else " "
    for row, record in enumerate(records):
        cells[row][2 * line_of[row].column] = _mark(record, row in tree.undone)
    # From left to right, so that the corner of a near line becomes a crossing.
    for line in sorted(lines, key=lambda x: x.column):
        if line.base is not None:
            _branch(cells[line.base], line_of[line.base].column, line.column)
    return [("".join(row), "".join(under)) for row, under in zip(cells, below, strict=True)]


def _branch(cells: list[str], base: int, column: int) -> None:
    """Draws the branch from the column of one line to that of another."""
    rightwards = column > base
    cells[2 * column] = "╮" if rightwards else "╭"
    between = range(2 * base + 1, 2 * column) if rightwards else range(2 * column + 1, 2 * base)
    for at in between:
        cells[at] = {" ": "─", "│": "┼", "╮": "┬", "╭": "┬"}.get(cells[at], cells[at])


def _mark(record: Record, undone: bool) -> str:
    if isinstance(record, CheckpointRecord):
        return "○" if undone else "●"
    return _MARKS.get(record.kind, "·")


# -- text -------------------------------------------------------------------------------------------------------------


def _text(record: Record) -> str:
    if isinstance(record, CheckpointRecord):
        return (
            f"{to_seconds(record.ended_at)}  checkpoint {record.checkpoint_id}, {_run(record)}: "
            f"{record.rows_in:,} rows, +{human_bytes(record.increment_bytes)}, "
            f"{_duration(record.duration_ms)}"
        )
    facts = [
        f"{_SHORT_NAMES.get(name, name.replace('_', ' '))} {_fact_text(value)}"
        for name, value in record.facts.items()
        if value and name not in _INTERNAL_FACTS
    ]
    sizes = [human_bytes(record.size_bytes)] if record.size_bytes else []
    times = [_duration(record.duration_ms)] if record.duration_ms else []
    requester = f", requested by {describe_requester(record.requested_by)}" if record.requested_by else ""
    why = "; ".join(" ".join(text.split()) for text in (record.reason, record.note) if text)
    details = ", ".join(facts + sizes + times)
    about = f"{record.kind} by {describe_requester(record.by)}{requester}" + (f" ({why})" if why else "")
    return f"{to_seconds(record.ended_at)}  {about}" + (f": {details}" if details else "")


def _fact_text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _run(record: CheckpointRecord) -> str:
    """Returns the number of a checkpoint's run, with the run's reason."""
    reason = " ".join(record.reason.split())
    return f"run {record.run}" + (f" ({reason})" if reason else "")


def _parts(text: str, width: int) -> list[str]:
    """Wraps a text without breaking words, so that a path can be copied."""
    return textwrap.wrap(
        text, max(width, _MIN_WIDTH), subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False
    )


def _duration(ms: float) -> str:
    if ms < 1000:
        return f"{ms:.0f} ms"
    return f"{ms / 1000:.1f} s" if ms < 60_000 else f"{ms / 60_000:.1f} min"
