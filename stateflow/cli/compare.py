"""The command that compares the state of two checkpoints or savepoints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice

import click
import pyarrow as pa

from stateflow.cli.common import (
    OPTIONAL_ROOT,
    align_columns,
    count_of,
    human_bytes,
    json_option,
    one_line,
    print_json,
    print_text,
)
from stateflow.compare.snapshots import ComparedSnapshot, SnapshotDiff
from stateflow.compare.snapshots import diff as diff_snapshots
from stateflow.compare.summary import ADDED, CHANGED, REMOVED, StateDiff

_SIGNS = {ADDED: "+", REMOVED: "-", CHANGED: "~"}
_LONGEST_VALUE = 200


@dataclass(frozen=True)
class ChangedKey:
    """A key whose value differs.

    Attributes:
        operator: uid of the operator.
        state: name of the state.
        change: ``added``, ``removed`` or ``changed``.
        key: values of the key columns.
        namespace: None without a namespace.
        map_key: key in a map state; None for other states.
        old: the value in the first snapshot; None if it does not have the key.
        new: the value in the second snapshot; None if it does not have the key.
    """

    operator: str
    state: str
    change: str
    key: object
    namespace: object
    map_key: object
    old: object
    new: object


@dataclass(frozen=True)
class DiffReport:
    """How the state of two snapshots differs.

    Attributes:
        old: the first snapshot.
        new: the second snapshot.
        keys: number of keys that differ.
        states: the differences by operator and state.
        read_bytes: bytes of keyed state that were read from both snapshots.
        changes: the keys that differ, with ``--keys``; None otherwise.
    """

    old: ComparedSnapshot
    new: ComparedSnapshot
    keys: int
    states: tuple[StateDiff, ...]
    read_bytes: int
    changes: list[ChangedKey] | None


@click.command()
@click.argument("old", metavar="A")
@click.argument("new", metavar="B")
@OPTIONAL_ROOT
@click.option(
    "--operator", "operators", multiple=True, metavar="UID", help="Only this operator; repeatable. Default: all."
)
@click.option("--keys", is_flag=True, help="List the keys that differ, with their values.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=100, show_default=True, metavar="N", help="How many keys to list."
)
@click.option("--count-all", is_flag=True, help="Count all keys of each state, which reads all files.")
@click.option("--exit-code", is_flag=True, help="Exit with 1 if the state differs.")
@json_option(DiffReport, has_findings=True)
def diff(
    old: str,
    new: str,
    job_root: str,
    operators: tuple[str, ...],
    keys: bool,
    limit: int,
    count_all: bool,
    exit_code: bool,
    as_json: bool,
) -> None:
    """Compare the state of two checkpoints or savepoints, of one job or of two.

    A and B are job roots or folders of savepoints. A checkpoint's id, a savepoint's name or another target of a restore
    may follow a job root after an @, as in /jobs/flights@17; without it, its newest checkpoint is compared. With
    --job-root, A and B are ids or names in that job root.

    Runs may continue meanwhile: the checkpoints are pinned.
    """
    first, second = (_location(each, job_root) for each in (old, new))
    found = diff_snapshots(first, second, operators, changes=keys, counts_all=count_all)
    listed = list(islice(_rows(found.changes), limit)) if found.changes is not None else None
    if as_json:
        print_json(_report(found, listed))
    else:
        _print(found, listed)
    if exit_code and found.keys:
        raise click.exceptions.Exit(1)


def _location(text: str, job_root: str) -> str:
    return f"{job_root.rstrip('/')}@{text}" if job_root and "/" not in text else text


def _rows(changes: pa.RecordBatchReader) -> Iterator[dict[str, str | None]]:
    return chain.from_iterable(batch.to_pylist() for batch in changes)


def _report(found: SnapshotDiff, listed: list[dict[str, str | None]] | None) -> DiffReport:
    changes = None if listed is None else [_changed_key(row) for row in listed]
    return DiffReport(found.old, found.new, found.keys, found.states, found.read_bytes, changes)


def _changed_key(row: dict[str, str | None]) -> ChangedKey:
    """Returns a changed key, with the values that its columns encode."""
    texts = (row[name] for name in ("key", "namespace", "map_key", "old", "new"))
    values = [None if text is None else json.loads(text) for text in texts]
    return ChangedKey(row["operator"] or "", row["state"] or "", row["change"] or "", *values)


def _print(found: SnapshotDiff, listed: list[dict[str, str | None]] | None) -> None:
    print_text(f"A  {_described(found.old)}")
    print_text(f"B  {_described(found.new)}")
    for line in _table(found) if found.states else ():
        print_text(line)
    read = f"{human_bytes(found.read_bytes)} of {human_bytes(found.old.size_bytes + found.new.size_bytes)} read"
    print_text(f"{count_of(found.keys, 'key')} of both differ; {read}" if found.keys else f"no key differs; {read}")
    for state in found.states:
        if state.reads_as == "neither":
            print_text(f"the types of {one_line(state.operator)}.{one_line(state.state)} are incompatible")
    if listed is None:
        return
    for row in listed:
        print_text(_line(row))
    if len(listed) < found.keys:
        print_text(f"{count_of(found.keys - len(listed), 'key')} more: pass --limit N to list them")


def _described(snapshot: ComparedSnapshot) -> str:
    return f"{one_line(snapshot.label)} of {one_line(snapshot.job)}, {one_line(snapshot.location)}"


def _table(found: SnapshotDiff) -> list[str]:
    has_totals = any(state.old_keys is not None for state in found.states)
    totals = ["keys in A", "keys in B"] if has_totals else []
    head = ["operator", "state", "kind", "added", "removed", "changed", "bytes in A", "bytes in B", *totals]
    return align_columns([head, *(_cells(state, has_totals) for state in found.states)])


def _cells(state: StateDiff, has_totals: bool) -> list[str]:
    counts = [f"{count:,}" for count in (state.added, state.removed, state.changed)]
    sizes = [human_bytes(size) for size in (state.old_bytes, state.new_bytes)]
    totals = ["-" if count is None else f"{count:,}" for count in (state.old_keys, state.new_keys)]
    return [state.operator, state.state, state.kind, *counts, *sizes, *(totals if has_totals else [])]


def _line(row: dict[str, str | None]) -> str:
    """Returns a changed key as one line: ``~ totals.count ["a"] 1 -> 2``."""
    place = f"{row['operator']}.{row['state']} {row['key']}"
    for name in ("namespace", "map_key"):
        if row[name] is not None:
            place += f" {name}={row[name]}"
    values = [_cut(value) for value in (row["old"], row["new"]) if value is not None]
    return one_line(f"{_SIGNS[row['change'] or CHANGED]} {place} {' -> '.join(values)}")


def _cut(value: str) -> str:
    return value if len(value) <= _LONGEST_VALUE else f"{value[:_LONGEST_VALUE]}…"
