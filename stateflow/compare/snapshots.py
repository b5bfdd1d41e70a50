"""Compares the state of two checkpoints or savepoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from stateflow import failpoints
from stateflow.clock import Clock, SystemClock
from stateflow.compare.change_rows import ChangeFile, change_row
from stateflow.compare.operator_state import PREFIX, RAW, RAW_KEYED, decode_operator_key
from stateflow.compare.operators import OperatorComparison, Readers
from stateflow.compare.states import StatePair
from stateflow.compare.stored_entries import EntryReader, Side
from stateflow.compare.summary import StateDiff, Tally
from stateflow.errors import ConfigError
from stateflow.query.snapshot import Snapshot, open_snapshot
from stateflow.scratch_folder import ScratchFolder
from stateflow.similar_names import did_you_mean

Location = tuple[str, int | str | None]
"""The arguments of `open_snapshot`: a job root or the folder of a savepoint, and the snapshot in it."""


@dataclass(frozen=True)
class DiffOptions:
    """What to compare, and what to return.

    Attributes:
        operators: uids of the operators to compare; all if empty.
        changes: whether to return the keys that differ, not only their numbers.
        counts_all: whether to count all keys of each state, which reads all files of both snapshots.
    """

    operators: tuple[str, ...] = ()
    changes: bool = True
    counts_all: bool = False


@dataclass(frozen=True)
class ComparedSnapshot:
    """One of the two snapshots.

    Attributes:
        location: URI of the storage with its files.
        job: name of its job.
        label: its kind and id or name.
        bytes: bytes of the keyed state of the compared operators; a file that several subtasks share counts once.
    """

    location: str
    job: str
    label: str
    bytes: int


@dataclass(frozen=True)
class SnapshotDiff:
    """How the state of two snapshots differs.

    Attributes:
        old: the first snapshot.
        new: the second snapshot.
        states: the differences by operator and state.
        read_bytes: bytes of keyed state that were read from both snapshots. A file that both share counts once if it
            is read in parts, and twice if it is read as a whole.
        changes: the keys that differ as record batches, ordered by operator and stored key; None if they were not
            asked for. It can be read once.
    """

    old: ComparedSnapshot
    new: ComparedSnapshot
    states: tuple[StateDiff, ...]
    read_bytes: int
    changes: pa.RecordBatchReader | None = None

    @property
    def keys(self) -> int:
        """Number of keys that differ."""
        return sum(state.keys for state in self.states)


def diff(
    old: str, new: str, operators: Sequence[str] = (), *, changes: bool = True, counts_all: bool = False
) -> SnapshotDiff:
    """Compares the state of two checkpoints or savepoints, of one job or of two; safe while runs are active.

    Of two checkpoints of one job, files that both have are not read as a whole. A different parallelism or max
    parallelism makes no difference. Values are compared decoded: the order of sets and dicts, and the time at which a
    value with a TTL was written, make no difference either.

    Args:
        old: the first snapshot: a job root or the folder of a savepoint, as a path or URI. ``@`` and the id of a
            checkpoint, the name of a savepoint, or another target of a restore may follow a job root; without it, its
            newest checkpoint is compared.
        new: the second snapshot.
        operators: uids of the operators to compare; all of them by default.
        changes: whether to return the keys that differ, not only their numbers.
        counts_all: whether to count all keys of each state, which reads all files of both snapshots.

    Raises:
        ConfigError: a snapshot or an operator does not exist, or an operator's key columns have other types.
        MissingFile, CorruptFile: a file of a snapshot is missing or damaged.
    """
    options = DiffOptions(tuple(operators), changes, counts_all)
    return open_and_compare(split_location(old), split_location(new), options)


def open_and_compare(old: Location, new: Location, options: DiffOptions) -> SnapshotDiff:
    """Opens two snapshots and compares them; raises as `diff` does."""
    with ExitStack() as stack:
        first, second = (stack.enter_context(open_snapshot(*each)) for each in (old, new))
        return compare(first, second, options)


def split_location(text: str) -> Location:
    """Divides ``LOCATION@SNAPSHOT``; returns None for the snapshot if the last part of the path has no ``@``."""
    folder, slash, name = text.rpartition("/")
    location, at, snapshot = name.partition("@")
    if not at or not snapshot or not (folder or location):
        return text, None
    return f"{folder}{slash}{location}", snapshot


def compare(old: Snapshot, new: Snapshot, options: DiffOptions, clock: Clock | None = None) -> SnapshotDiff:
    """Compares two open snapshots; arguments and errors as for `diff`."""
    sides = [
        {operator.uid: Side(each.storage, operator, each.max_parallelism) for operator in each.manifest.operators}
        for each in (old, new)
    ]
    uids = _chosen(sides[0] | sides[1], options.operators)
    states: list[StateDiff] = []
    file = ChangeFile() if options.changes else None
    try:
        with ScratchFolder() as scratch:
            readers = _readers(scratch.path, clock or SystemClock())
            for uid in uids:
                found = OperatorComparison(sides[0].get(uid), sides[1].get(uid), readers, options.counts_all)
                states += _compared(uid, found, file)
                failpoints.hit("diff.compared")
    except BaseException:
        if file is not None:
            file.close()
        raise
    compared = [
        _described(each, [side[uid] for uid in uids if uid in side])
        for each, side in zip((old, new), sides, strict=True)
    ]
    return SnapshotDiff(compared[0], compared[1], tuple(states), readers.read_bytes, file.finish() if file else None)


def _readers(scratch: Path, clock: Clock) -> Readers:
    old = EntryReader(scratch / "old", clock)
    return Readers(old, EntryReader(scratch / "new", clock, [old.cache_folder]))


def _compared(uid: str, found: OperatorComparison, file: ChangeFile | None) -> Iterator[StateDiff]:
    tally = Tally(uid)
    for pair, difference in found.differences():
        tally.add(pair, difference)
        if file is not None:
            decode = decode_operator_key if _is_operator_state(pair) else found.states.decode
            file.add(change_row(uid, pair, difference, decode))
    yield from tally.result(found.states, found.totals)


def _is_operator_state(pair: StatePair) -> bool:
    return pair.name.startswith(PREFIX) or pair.name in (RAW, RAW_KEYED)


def _chosen(found: dict[str, Side], wanted: Sequence[str]) -> list[str]:
    unknown = [uid for uid in wanted if uid not in found]
    if unknown:
        raise ConfigError(
            "neither snapshot has state of this operator",
            hint=did_you_mean(unknown[0], found) if found else "no operator of the job has state",
            uid=unknown[0],
            found=sorted(found),
        )
    return sorted(set(wanted) or found)


def _described(snapshot: Snapshot, sides: Sequence[Side]) -> ComparedSnapshot:
    return ComparedSnapshot(snapshot.storage.uri, snapshot.job, snapshot.label, sum(side.bytes for side in sides))
