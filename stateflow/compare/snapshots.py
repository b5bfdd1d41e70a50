"""Compares the state of two checkpoints or savepoints."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import pyarrow as pa

from stateflow import failpoints
from stateflow.clock import Clock, SystemClock
from stateflow.compare.changes import ChangeFile, ComparedState, changes_as_text, read_typed_changes
from stateflow.compare.merge import Difference
from stateflow.compare.operators import (
    PREFIX,
    RAW,
    RAW_KEYED,
    OperatorComparison,
    OperatorSide,
    Readers,
    decode_operator_key,
)
from stateflow.compare.states import StatePair, StatePairs
from stateflow.compare.summary import StateDiff, Tally
from stateflow.errors import ConfigError
from stateflow.helpers import did_you_mean
from stateflow.private_files import ScratchFolder
from stateflow.query.snapshot import Snapshot, open_snapshot

Location = tuple[str, int | str | None]
"""The arguments of `open_snapshot`: a job root or the folder of a savepoint, and the snapshot in it."""


@dataclass(frozen=True)
class DiffOptions:
    """Options of a comparison.

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
        size_bytes: bytes of the keyed state of the compared operators; a file that several subtasks share counts once.
    """

    location: str
    job: str
    label: str
    size_bytes: int


@dataclass(frozen=True)
class SnapshotDiff:
    """How the state of two snapshots differs.

    Attributes:
        old: the first snapshot.
        new: the second snapshot.
        states: the differences by operator and state.
        read_bytes: bytes of keyed state that were read from both snapshots. A file that both share counts once if it
            is read in parts, and twice if it is read as a whole.
        changes: the keys that differ as record batches, with keys and values as JSON, ordered by operator and stored
            key; None if they were not requested. It can be read once. Raises CorruptFile for a value that does not
            decode.
    """

    old: ComparedSnapshot
    new: ComparedSnapshot
    states: tuple[StateDiff, ...]
    read_bytes: int
    changes: pa.RecordBatchReader | None = None
    _file: ChangeFile | None = field(default=None, repr=False)

    @property
    def keys(self) -> int:
        """Number of keys that differ."""
        return sum(state.keys for state in self.states)

    def changes_of(self, operator: str, state: str) -> pa.RecordBatchReader:
        """Returns a reader of the keys of one state that differ, with the types of `stateflow.read_state`.

        The columns are ``change``, which is ``added``, ``removed`` or ``changed``; those of the key, as `read_state`
        returns them; and ``old`` and ``new``, each with the type that its snapshot has recorded, null where the
        snapshot does not have the key. A list is one row with all its elements. Timers have no values.

        Args:
            operator: uid of the operator.
            state: name of the state, ``_timers`` or ``_operator/NAME``, as in `states`.

        Raises:
            ConfigError: the state is not one of `states`; or it has another kind in each snapshot, or the keys that
                differ were not requested.
            CorruptFile: from the reader: a key or value does not decode.
            StateError: from the reader: a value, such as an integer beyond 64 bits, has no representation in its
                column.
        """
        if self._file is None:
            raise ConfigError("the changes were not requested", hint="compare with changes=True")
        found = [
            number for number, each in enumerate(self._file.states) if (each.uid, each.pair.name) == (operator, state)
        ]
        if len(found) != 1:
            raise _no_single_state(self._file.states, operator, state)
        return read_typed_changes(self._file, found[0])


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
        {
            operator.uid: OperatorSide(each.storage, operator, each.max_parallelism)
            for operator in each.manifest.operators
        }
        for each in (old, new)
    ]
    uids = _chosen(sides[0] | sides[1], options.operators)
    states: list[StateDiff] = []
    file = ChangeFile() if options.changes else None
    try:
        with ScratchFolder() as scratch:
            readers = Readers.create(scratch.path, clock or SystemClock())
            for uid in uids:
                first, second = sides[0].get(uid), sides[1].get(uid)
                found = OperatorComparison(first, second, readers, counts_all=options.counts_all)
                listing = _Listing(uid, found.states, file, old=first, new=second) if file else None
                states += _count_differences(uid, found, listing)
                failpoints.hit("diff.compared")
    except BaseException:
        if file is not None:
            file.close()
        raise
    compared = [
        _described(each, [side[uid] for uid in uids if uid in side])
        for each, side in zip((old, new), sides, strict=True)
    ]
    diff = SnapshotDiff(compared[0], compared[1], tuple(states), readers.read_bytes)
    if file is None:
        return diff
    file.finish()
    return dataclasses.replace(diff, changes=changes_as_text(file), _file=file)


class _Listing:
    """Adds the differences of one operator to a file.

    Args:
        uid: uid of the operator.
        states: its keyed states.
        file: the file.
        old, new: the operator in each snapshot; None in one that does not have it.
    """

    def __init__(
        self, uid: str, states: StatePairs, file: ChangeFile, *, old: OperatorSide | None, new: OperatorSide | None
    ) -> None:
        self._uid = uid
        self._decode = states.decode
        self._old, self._new = (side.operator if side else None for side in (old, new))
        self._file = file
        for pair in states.pairs:
            self._number_of(pair)

    def _number_of(self, pair: StatePair) -> int:
        decode = decode_operator_key if _is_operator_state(pair) else self._decode
        return self._file.number_of(ComparedState(self._uid, pair, decode, self._old, self._new))

    def add(self, pair: StatePair, found: Difference) -> None:
        """Adds a difference."""
        self._file.add(self._number_of(pair), found)


def _count_differences(uid: str, found: OperatorComparison, listing: _Listing | None) -> Iterator[StateDiff]:
    tally = Tally(uid)
    for pair, difference in found.differences():
        tally.add(pair, difference)
        if listing is not None:
            listing.add(pair, difference)
    yield from tally.result(found.states, found.totals)


def _no_single_state(states: Sequence[ComparedState], operator: str, state: str) -> ConfigError:
    known = sorted({f"{each.uid}.{each.pair.name}" for each in states})
    if f"{operator}.{state}" in known:
        return ConfigError(
            "the kind of the state differs between the snapshots",
            hint="read changes instead, which has the keys of both",
            operator=operator,
            state=state,
        )
    return ConfigError(
        "no such state was compared",
        hint=did_you_mean(f"{operator}.{state}", known) if known else "neither snapshot has state",
        operator=operator,
        state=state,
        found=known,
    )


def _is_operator_state(pair: StatePair) -> bool:
    return pair.name.startswith(PREFIX) or pair.name in (RAW, RAW_KEYED)


def _chosen(found: dict[str, OperatorSide], wanted: Sequence[str]) -> list[str]:
    unknown = [uid for uid in wanted if uid not in found]
    if unknown:
        raise ConfigError(
            "neither snapshot has state of this operator",
            hint=did_you_mean(unknown[0], found) if found else "no operator of the job has state",
            uid=unknown[0],
            found=sorted(found),
        )
    return sorted(set(wanted) or found)


def _described(snapshot: Snapshot, sides: Sequence[OperatorSide]) -> ComparedSnapshot:
    return ComparedSnapshot(snapshot.storage.uri, snapshot.job, snapshot.label, sum(side.bytes for side in sides))
