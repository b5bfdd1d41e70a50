"""A job's history as lines of text: one per record, beside a graph of the branches that were gone back on. Pure.

What the job stands at now, and all that it came from, is one line straight down on the left. What was gone back behind
steps aside, and so does what was gone back to in vain; a fork leaves for a job of its own.
"""

from __future__ import annotations

import textwrap
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stateflow.checkpoint.history import (
    ActionRecord,
    CheckpointRecord,
    Record,
    in_order,
    is_point,
    seq_of,
)
from stateflow.terminal import human_bytes

_MARKS = {"savepoint": "◆", "restore": "↶", "rewind": "↶", "fork": "⑂", "dispose": "✕", "stop": "■",
          "relocate": "→", "rejection": "⊘"}  # fmt: skip
_UNTOLD = ("base", "id", "path", "request")
"""Facts for programs."""
_LEGEND = "●  what the job stands on    ○  undone: a restore went back behind it"
_INDENT = " " * 21
"""Below what happened, not below when."""
_NARROW = 50
"""A text is never narrower, however many branches there are."""


def draw_timeline(records: Sequence[Record], width: int | None = None) -> list[str]:
    """One line per record, oldest first; more of them for one that is wider than `width`."""
    if not records:
        return ["nothing happened yet"]
    records = in_order(records)
    tree = _tree(records)
    graph = _graph(records, tree)
    across = max(len(drawn) for drawn, _ in graph) + 2
    result = []
    for record, (drawn, below) in zip(records, graph, strict=True):
        text = _text(record)
        first, *more = _parts(text, width - across if width else len(text))
        result += [f"{drawn:<{across}}{first}", *(f"{below:<{across}}{part}" for part in more)]
    if tree.undone:
        result += ["", _LEGEND]
    return result


# -- what came of what ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tree:
    """Rows, and what each hangs on.

    Attributes:
        above: the row that a row hangs on; None when nothing that is here came before it.
        points: rows that the job stood at.
        live: those of them that led to where it stands now.
        forks: rows that another job begins with.
        older: rows that hang on something before the first record.
    """

    above: Sequence[int | None]
    points: Sequence[int]
    live: frozenset[int]
    forks: frozenset[int]
    older: frozenset[int]

    @property
    def undone(self) -> frozenset[int]:
        return frozenset(self.points) - self.live


def _tree(records: Sequence[Record]) -> _Tree:
    points = [row for row, r in enumerate(records) if is_point(r)]
    seqs = [seq_of(records[row]) for row in points]
    bases = [_base(r) for r in records]
    above: list[int | None] = []
    for row, record in enumerate(records):
        # Of a run that was killed behind its commit, the checkpoint's record is missing: the point before it counts.
        base, before = bases[row], bisect_left(points, row)
        found = min(before, bisect_right(seqs, seq_of(record) if base is None else base))
        above.append(points[found - 1] if found else None)
    forks = frozenset(
        row for row, r in enumerate(records) if isinstance(r, ActionRecord) and r.kind == "fork"
    ) - frozenset(points)
    older = frozenset(row for row, base in enumerate(bases) if base and above[row] is None)
    return _Tree(above, points, _path(above, points), forks, older)


def _base(record: Record) -> int | None:
    """The checkpoint that was gone back to, or forked; 0 for another job's, None for what goes on from what is."""
    if isinstance(record, CheckpointRecord) or "base" not in record.facts:
        return None
    text = record.facts["base"]
    return int(text) if text.isdecimal() else 0


def _path(above: Sequence[int | None], points: Sequence[int]) -> frozenset[int]:
    path = set()
    row = points[-1] if points else None
    while row is not None:
        path.add(row)
        row = above[row]
    return frozenset(path)


# -- lines and columns ------------------------------------------------------------------------------------------------


@dataclass
class _Line:
    """Records that came one after another, without anybody going back.

    Attributes:
        base: the row at which it leaves another line; None when it leaves none that is here.
        first, last: rows between which it is drawn.
        tip: its newest point; None in a fork's.
        column: 0 for the live line.
    """

    base: int | None
    first: int
    last: int
    tip: int | None = None
    column: int = 0
    rows: list[int] = field(default_factory=list)

    def is_apart(self, other: _Line) -> bool:
        """Whether both may have one column, and nobody takes them for one line."""
        return self.first > other.last + 1 or other.first > self.last + 1


def _lines(tree: _Tree) -> list[_Line]:
    """The live line, then the others as they begin; every row is on one."""
    start = min(tree.live, default=0)
    live = _Line(None, 0 if start in tree.older else start, len(tree.above) - 1)
    lines, home = [live], dict.fromkeys(tree.live, live)
    points = frozenset(tree.points)
    for row in range(len(tree.above)):
        line = _joined(row, tree, home, live)
        if line is None:
            line = _begun(row, tree)
            lines.append(line)
        line.rows.append(row)
        line.last = max(line.last, row)
        if row in points:
            line.tip, home[row] = row, line
    return lines


def _joined(row: int, tree: _Tree, home: Mapping[int, _Line], live: _Line) -> _Line | None:
    """The line that a row goes on with; None when it begins one."""
    if row in tree.live:
        return live
    above = tree.above[row]
    line = live if above is None else home[above]
    if row in tree.forks:
        return None
    # What the live line goes on with is known; from any other line's newest point, the first one goes on.
    is_point = row in tree.undone
    return line if not is_point or (line is not live and line.tip == above) else None


def _begun(row: int, tree: _Tree) -> _Line:
    above = tree.above[row]
    first = above if above is not None else 0 if row in tree.older else row
    return _Line(above, first, row)


def _place(lines: Sequence[_Line]) -> None:
    """Gives each line the leftmost column that is free all along it."""
    placed: list[_Line] = []
    for line in sorted(lines[1:], key=lambda x: (x.first, x.rows[0])):
        line.column = next(
            column
            for column in range(1, len(lines) + 1)
            if all(line.is_apart(other) for other in placed if other.column == column)
        )
        placed.append(line)


# -- drawing ----------------------------------------------------------------------------------------------------------


def _graph(records: Sequence[Record], tree: _Tree) -> list[tuple[str, str]]:
    """What stands beside each record: in its line, and in those that its text goes on in."""
    lines = _lines(tree)
    _place(lines)
    width = 2 * max(line.column for line in lines) + 1
    home = {row: line for line in lines for row in line.rows}
    cells, below = ([[" "] * width for _ in records] for _ in range(2))
    for line in lines:
        for row in range(line.first, line.last + 1):
            cells[row][2 * line.column] = "│"
            below[row][2 * line.column] = "│" if row < line.last else " "
    for row, record in enumerate(records):
        cells[row][2 * home[row].column] = _mark(record, row in tree.undone)
    # Far ones last: a near one's corner becomes a crossing that way.
    for line in sorted(lines, key=lambda x: x.column):
        if line.base is not None:
            _branch(cells[line.base], home[line.base].column, line.column)
    return [("".join(row), "".join(under)) for row, under in zip(cells, below, strict=True)]


def _branch(cells: list[str], base: int, column: int) -> None:
    """Draws how a line leaves another."""
    rightwards = column > base
    cells[2 * column] = "╮" if rightwards else "╭"
    between = range(2 * base + 1, 2 * column) if rightwards else range(2 * column + 1, 2 * base)
    for place in between:
        cells[place] = {" ": "─", "│": "┼", "╮": "┬", "╭": "┬"}.get(cells[place], cells[place])


def _mark(record: Record, undone: bool) -> str:
    if isinstance(record, CheckpointRecord):
        return "○" if undone else "●"
    return _MARKS.get(record.kind, "·")


# -- words ------------------------------------------------------------------------------------------------------------


def _text(record: Record) -> str:
    if isinstance(record, CheckpointRecord):
        return (f"{_when(record.committed_at)}  checkpoint {record.checkpoint_id}, {_run(record)}: "
                f"{record.rows_in:,} rows, +{human_bytes(record.increment_bytes)}, "
                f"{_took(record.duration_ms)}")  # fmt: skip
    told = [f"{k.replace('_', ' ')} {v}" for k, v in record.facts.items() if v and k not in _UNTOLD]
    sizes = [human_bytes(record.bytes)] if record.bytes else []
    times = [_took(record.took_ms)] if record.took_ms else []
    why = f" ({' '.join(record.reason.split())})" if record.reason else ""
    facts = ", ".join(told + sizes + times)
    return f"{_when(record.at)}  {record.kind} by {record.by}{why}" + (f": {facts}" if facts else "")


def _run(record: CheckpointRecord) -> str:
    """The run of a checkpoint; by its generation in records of older versions, which have no number."""
    generation = f"generation {record.generation}"
    reason = " ".join(record.reason.split())
    more = [reason, generation if 0 < record.run != record.generation else ""]
    details = ", ".join(filter(None, more))
    return (f"run {record.run}" if record.run else generation) + (f" ({details})" if details else "")


def _parts(text: str, width: int) -> list[str]:
    """A text in lines of that width; no word is broken, so that a path can be copied."""
    return textwrap.wrap(
        text, max(width, _NARROW), subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False
    )


def _when(at: str) -> str:
    return at[:19].replace("T", " ")


def _took(ms: float) -> str:
    if ms < 1000:
        return f"{ms:.0f} ms"
    return f"{ms / 1000:.1f} s" if ms < 60_000 else f"{ms / 60_000:.1f} min"
