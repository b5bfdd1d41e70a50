"""The command that compares the state of two checkpoints or savepoints."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import chain, islice

import click
import pyarrow as pa

from stateflow.cli.common import (
    JSON,
    OPTIONAL_ROOT,
    align_columns,
    count_of,
    human_bytes,
    one_line,
    print_json,
    print_text,
)
from stateflow.compare.snapshots import ComparedSnapshot, SnapshotDiff
from stateflow.compare.snapshots import diff as diff_snapshots
from stateflow.compare.summary import ADDED, CHANGED, REMOVED, StateDiff

_SIGNS = {ADDED: "+", REMOVED: "-", CHANGED: "~"}
_LONGEST_VALUE = 200


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
@JSON
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
        print_json(_as_json(found, listed))
    else:
        _print(found, listed)
    if exit_code and found.keys:
        raise click.exceptions.Exit(1)


def _location(text: str, job_root: str) -> str:
    return f"{job_root.rstrip('/')}@{text}" if job_root and "/" not in text else text


def _rows(changes: pa.RecordBatchReader) -> Iterator[dict[str, str | None]]:
    return chain.from_iterable(batch.to_pylist() for batch in changes)


def _as_json(found: SnapshotDiff, listed: list[dict[str, str | None]] | None) -> dict[str, object]:
    shown: dict[str, object] = {
        "old": dataclasses.asdict(found.old),
        "new": dataclasses.asdict(found.new),
        "keys": found.keys,
        "states": [dataclasses.asdict(state) for state in found.states],
        "read_bytes": found.read_bytes,
    }
    return shown if listed is None else {**shown, "changes": listed}


def _print(found: SnapshotDiff, listed: list[dict[str, str | None]] | None) -> None:
    print_text(f"A  {_described(found.old)}")
    print_text(f"B  {_described(found.new)}")
    for line in _table(found) if found.states else ():
        print_text(line)
    read = f"{human_bytes(found.read_bytes)} of {human_bytes(found.old.bytes + found.new.bytes)} read"
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
