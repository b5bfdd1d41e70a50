"""Writes savepoints without a run: new ones from data, and changed copies of existing ones."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self, TypeVar

from msgspec import structs

from stateflow.bootstrap.document import (
    CHECKPOINT_ID,
    AnySource,
    GivenSource,
    Position,
    complete_savepoint,
    time_of_savepoint,
    with_positions,
    with_stored_logs,
)
from stateflow.bootstrap.encoded_entries import EPOCH, GivenKey
from stateflow.bootstrap.frames import KeyedStateFrame, check_frame, is_spark
from stateflow.bootstrap.keyed_files import write_local
from stateflow.bootstrap.layout import GivenOperator, Layout, SavepointFolder, check_timers, state_rows
from stateflow.bootstrap.operator_states import OperatorStateRows, OperatorStates, RawRows
from stateflow.bootstrap.transforms import ChangedOperator, StateTransformation, Transform
from stateflow.checkpoint.log.documents import Manifest, OperatorState, Origin, Savepoint, SavepointFormat
from stateflow.checkpoint.log.manifest_files import state_bytes
from stateflow.checkpoint.savepoints.canonical.worker_pool import LocalWorkers
from stateflow.checkpoint.savepoints.catalog import VERSION, StoredSavepoint, savepoint_at
from stateflow.checkpoint.savepoints.create import ManifestCopy, ManifestFiles
from stateflow.checkpoint.savepoints.names import check_savepoint_name
from stateflow.clock import Clock, SystemClock, epoch_milliseconds
from stateflow.config.settings import SavepointSettings
from stateflow.errors import ConfigError, StateflowError
from stateflow.helpers import check_name, did_you_mean, installed_version
from stateflow.query.snapshot import savepoint_snapshot
from stateflow.requesters import os_user
from stateflow.state.handles import SubtaskState
from stateflow.storage import open_location
from stateflow.types.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor
from stateflow.types.key_groups import DEFAULT_MAX_PARALLELISM, check_max_parallelism

if TYPE_CHECKING:
    from stateflow.bootstrap.frames import Frame


T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


def write_keyed(operator: GivenOperator, layout: Layout, target: SavepointFolder) -> list[SubtaskState]:
    """Writes the keyed state of an operator in canonical files; returns the state of each subtask that has entries.

    Raises:
        DataError: a key occurs twice, or a value is null.
        SchemaMismatch, StateError, EntryTooLarge: a value cannot be stored.
    """
    if any(map(is_spark, operator.frames)):
        from stateflow.bootstrap.spark_keyed_files import write_on_spark

        return write_on_spark(operator, layout, target)
    return write_local(operator, layout, target) if operator.frames else []


_DEFAULT_PARALLELISM = 4
Key = str | Sequence[str] | Mapping[str, str]


class SavepointWriter:
    """Writes a savepoint from DataFrames, from which a new job root starts: ``run --from-savepoint``.

    Frames are DataFrames of Spark, or Arrow tables, record batches and readers. Nothing is read or written before
    `write`. Rows of DataFrames do not pass this process: tasks of Spark write the files. The savepoint has the
    canonical format; a job continues from it with any state backend and parallelism.

    Create it with `new`, or with `from_savepoint` to remove operators of an existing savepoint and to transform their
    states. A transformation is a function that returns the new rows of some rows: it gets a `pyarrow.RecordBatch` with
    the columns of `stateflow.read_state`, and returns one with the columns of the frames that this class accepts. Keys
    may be removed, added or changed. It is called in this process, once for each batch, and not for a state without
    rows. Everything that is not transformed stays as it is.
    """

    def __init__(
        self,
        job: str,
        layout: Layout,
        on_spark: bool | None = None,
        clock: Clock | None = None,
        existing: StoredSavepoint | None = None,
    ) -> None:
        self._job = job
        self._layout = layout
        self._on_spark = on_spark
        self._clock = clock or SystemClock()
        self._existing = existing
        self._removed: set[str] = set()
        self._changes: dict[str, tuple[StateTransformation, ...]] = {}
        self._keyed: dict[str, GivenOperator] = {}
        self._operator_states: dict[str, OperatorStates] = {}
        self._sources: dict[str, GivenSource] = {}

    @classmethod
    def from_savepoint(
        cls, path: str | os.PathLike[str], *, parallelism: int | None = None, clock: Clock | None = None
    ) -> SavepointWriter:
        """Returns a writer of a changed copy of a savepoint, which stays as it is.

        Args:
            path: path or URI of the savepoint's folder.
            parallelism: as for `new`, of operators that are added.
            clock: as for `new`.

        Raises:
            ConfigError: no complete savepoint exists there.
        """
        existing = savepoint_at(os.fspath(path))
        layout = _layout(existing.document.max_parallelism, parallelism)
        return cls(existing.document.job, layout, clock=clock, existing=existing)

    @classmethod
    def new(
        cls,
        job: str,
        *,
        max_parallelism: int = DEFAULT_MAX_PARALLELISM,
        parallelism: int | None = None,
        on_spark: bool | None = None,
        clock: Clock | None = None,
    ) -> SavepointWriter:
        """Returns a writer of a savepoint without state.

        Args:
            job: name of the job that starts from it.
            max_parallelism: number of key groups of the job root.
            parallelism: number of subtasks whose state is written; by default 4. A job has any other.
            on_spark: whether Spark reads the sources of the job; None if the given sources decide it.
            clock: time and ids; by default the system's.

        Raises:
            ConfigError: a name or number is not valid.
        """
        check_name("a job's name", job)
        return cls(job, _layout(max_parallelism, parallelism), on_spark, clock)

    def with_operator(
        self, uid: str, *, key: Key, states: Sequence[KeyedStateFrame] = (), timers: Frame | None = None
    ) -> SavepointWriter:
        """Adds a keyed operator with its keyed state; returns this writer.

        Args:
            uid: uid of the operator.
            key: names of the key columns, in the order of the job's `key_by`; or their types, as Spark names them, by
                name. Without types, the types of the first frame are used.
            states: a frame for each keyed state.
            timers: a frame with the key columns, ``time``, and if it has them ``domain`` (``event`` or ``processing``;
                by default ``event``) and ``namespace``. Times are timestamps, or milliseconds since 1970.

        Raises:
            ConfigError: a frame lacks a column, or the uid was added before.
            StateError, JobDefinitionError: a declaration is not valid.
        """
        check_name("the uid of an operator", uid)
        if uid in self._keyed or uid in self._kept_operators():
            raise ConfigError(
                "an operator was added twice",
                hint="pass all of its states in one call, after without_operator for one of an existing savepoint",
                uid=uid,
            )
        frames = [(given.descriptor.name, given.frame) for given in states]
        for name, frame in [*frames, *([("_timers", timers)] if timers is not None else [])]:
            check_frame(frame, f"{uid}.{name}")
        first = frames[0][1] if frames else timers
        columns = GivenKey.of(key, first)
        if timers is not None:
            check_timers(uid, timers, columns.names)
        operator = GivenOperator(uid, columns, tuple(state_rows(given, columns) for given in states), timers)
        operator.schemas(0)
        self._keyed[uid], self._operator_states[uid] = operator, OperatorStates(uid, ())
        return self

    def with_operator_state(
        self, uid: str, descriptor: ListStateDescriptor[T], frame: Frame, *, union: bool = False
    ) -> SavepointWriter:
        """Adds a list of an operator's operator state; returns this writer.

        Args:
            uid: uid of an operator that was added; `with_operator` needs no states.
            descriptor: the list, as the job declares it.
            frame: its elements in order: ``value``, or a column for each of their fields.
            union: whether each subtask reads all elements: `get_union_list_state`.

        Raises:
            ConfigError: the operator was not added, or the frame lacks a column.
        """
        states = self._added_states(uid)
        self._operator_states[uid] = states.with_rows(OperatorStateRows(descriptor, frame, union))
        return self

    def with_broadcast_state(self, uid: str, descriptor: MapStateDescriptor[K, V], frame: Frame) -> SavepointWriter:
        """Adds a broadcast state; returns this writer. Arguments and errors as for `with_operator_state`.

        Args:
            uid: uid of an operator that was added.
            descriptor: the map, as the job declares it.
            frame: its entries: ``map_key``, and ``value`` or a column for each field of the values.
        """
        self._operator_states[uid] = self._added_states(uid).with_rows(OperatorStateRows(descriptor, frame))
        return self

    def with_raw_state(self, uid: str, *, partitions: Frame | None = None, key_groups: Frame | None = None) -> Self:
        """Adds raw state, as `snapshot_state` writes it; returns this writer. Errors as for `with_operator_state`.

        Args:
            uid: uid of an operator that was added.
            partitions: of raw operator state, in order: ``value``, their bytes.
            key_groups: raw keyed state: ``key_group`` and ``value``, a row for each key group that has some.
        """
        self._operator_states[uid] = self._added_states(uid).with_raw(RawRows(partitions, key_groups))
        return self

    def with_source(
        self, uid: str, source: AnySource, position: Position, *, watermark: datetime | int | None = None
    ) -> SavepointWriter:
        """Sets where a source continues; returns this writer. A source without a position begins at its start.

        Args:
            uid: uid of the source.
            source: the source, as the job declares it.
            position: ``earliest``; ``latest``; a datetime: the time from which on input is read, or for files the time
                before which they were modified; an int: the version of a Delta table; a dict: the next offsets of
                Kafka or of a partitioned source; or the source's own text. A source may not support all of them.
            watermark: its watermark, in milliseconds since 1970 if it is an int; None for the one before the first row.

        Raises:
            ConfigError: the source was added before.
        """
        check_name("the uid of a source", uid)
        if uid in self._sources:
            raise ConfigError("a source was added twice", hint="give one position", uid=uid)
        time = epoch_milliseconds(watermark) if isinstance(watermark, datetime) else watermark
        self._sources[uid] = GivenSource(source, position, time)
        return self

    def without_operator(self, uid: str) -> Self:
        """Removes an operator of the existing savepoint with all of its state; returns this writer.

        Raises:
            ConfigError: the savepoint has no such operator, or the writer is of a new one.
        """
        self._removed.add(self._kept_operator(uid).uid)
        self._changes.pop(uid, None)
        return self

    def transform_state(self, uid: str, descriptor: StateDescriptor, function: Transform) -> Self:
        """Replaces the entries of a keyed state of the existing savepoint; returns this writer.

        Args:
            uid: uid of the operator.
            descriptor: the state as the job declares it from now on, under its name; kind and type may be others.
            function: returns new rows, with the columns that `KeyedStateFrame` describes under their default names. The
                elements of a list are in the order of the rows. ``written_at``, from which a time to live counts, stays
                as it is if the function returns it.

        Raises:
            ConfigError: the savepoint has no such operator or state, or the writer is of a new one.
        """
        return self._transformed(uid, StateTransformation(descriptor, function))

    def transform_timers(self, uid: str, function: Transform) -> Self:
        """Replaces the timers of an operator; returns this writer. Arguments and errors as for `transform_state`.

        Args:
            uid: uid of the operator.
            function: returns new rows: the key columns, ``time``, ``domain`` and ``namespace``, as for
                `SavepointWriter.with_operator`.
        """
        return self._transformed(uid, StateTransformation(None, function))

    def transform_operator_state(self, uid: str, descriptor: ListStateDescriptor[T], function: Transform) -> Self:
        """Replaces the elements of a list of operator state; returns this writer. A union list stays one.

        Arguments and errors as for `transform_state`.

        Args:
            uid: uid of the operator.
            descriptor: the list as the job declares it from now on, under its name.
            function: returns new rows: ``value``, or a column for each field. Each subtask keeps the new rows of its
                own elements.
        """
        return self._transformed(uid, StateTransformation(descriptor, function, is_of_operator=True))

    def transform_broadcast_state(self, uid: str, descriptor: MapStateDescriptor[K, V], function: Transform) -> Self:
        """Replaces the entries of a broadcast state; returns this writer.

        Arguments and errors as for `transform_state`.

        Args:
            uid: uid of the operator.
            descriptor: the map as the job declares it from now on, under its name.
            function: returns new rows: ``map_key``, and ``value`` or a column for each field.
        """
        return self._transformed(uid, StateTransformation(descriptor, function, is_of_operator=True))

    def write(
        self,
        path: str | os.PathLike[str],
        *,
        name: str = "",
        at: datetime | None = None,
        reason: str = "",
        by: str = "",
    ) -> str:
        """Writes the savepoint, and returns the URI of its folder.

        The folder has a savepoint once everything is written. If the call is killed, the same call writes it again;
        if it is complete already, with the same content, nothing changes: it keeps its time and its positions.

        Args:
            path: path or URI of the savepoint's folder.
            name: name of the savepoint; by default, the folder's name.
            at: the time of the savepoint, which entries with a time to live get; by default the time of a savepoint
                which is in the folder already, or now. A repeated call with another time changes nothing if no entry
                depends on it.
            reason: why it is written, for display.
            by: who writes it, for display; by default the user of the operating system.

        Raises:
            ConfigError: another savepoint is in the folder, or a name or position is not valid.
            DataError: a key or value is null, or a key occurs twice; the error has the key.
            SchemaMismatch, StateError, EntryTooLarge: a value cannot be stored as its state declares; likewise.
            UserCodeError: a function that transforms a state has raised an exception.
        """
        storage = open_location(os.fspath(path))
        target = SavepointFolder(storage, "")
        named = check_savepoint_name(name or storage.uri.rstrip("/").rpartition("/")[2])
        when = at or time_of_savepoint(target) or self._clock.now()
        when = when if when.tzinfo else when.replace(tzinfo=UTC)
        manifest = self._write_state(target, when)
        complete_savepoint(self._document(manifest, name=named, at=when, by=by or os_user(), reason=reason), target)
        return storage.uri

    def _write_state(self, target: SavepointFolder, at: datetime) -> Manifest:
        """Writes all files of the savepoint; returns its manifest."""
        manifest = self._write_existing(target, at)
        layout = replace(self._layout, at=epoch_milliseconds(at), epoch=manifest.epoch)
        manifest = with_positions(manifest, self._sources, self._on_spark, at)
        if manifest.spark is not None:
            manifest = structs.replace(manifest, spark=with_stored_logs(manifest.spark, target))
        added = [
            _write_operator(keyed, self._operator_states[uid], layout, target) for uid, keyed in self._keyed.items()
        ]
        operators = sorted((*manifest.operators, *added), key=lambda operator: operator.uid)
        size = state_bytes(operators)
        return structs.replace(manifest, operators=operators, full_bytes=size, increment_bytes=size)

    def _document(self, manifest: Manifest, *, name: str, at: datetime, by: str, reason: str) -> Savepoint:
        made_at = at.isoformat(timespec="milliseconds")
        base = self._existing.document if self._existing else None
        return Savepoint(
            version=VERSION,
            id=self._clock.new_id(),
            name=name,
            origin=Origin.MANUAL,
            made_at=made_at,
            committed_at=made_at,
            by=by,
            reason=reason,
            format=SavepointFormat.CANONICAL,
            job=self._job,
            job_uuid=manifest.job_uuid,
            max_parallelism=self._layout.max_parallelism,
            drained=base is not None and base.drained,
            checkpoint_id=base.checkpoint_id if base else CHECKPOINT_ID,
            manifest=manifest,
            # As in the base: the tables have the output up to its checkpoint.
            sinks=base.sinks if base else {},
            stateflow=installed_version(),
            positions={uid: text for uid, given in self._sources.items() if (text := given.format_position(uid))},
        )

    def _added_states(self, uid: str) -> OperatorStates:
        if uid not in self._operator_states:
            raise ConfigError(
                "operator state belongs to an operator that was not added",
                hint='call with_operator before; without keyed state, it needs key={"column": "type"} only',
                uid=uid,
                known=sorted(self._operator_states),
            )
        return self._operator_states[uid]

    def _transformed(self, uid: str, change: StateTransformation) -> Self:
        change.check(self._kept_operator(uid))
        before = self._changes.get(uid, ())
        if any((each.name, each.is_of_operator) == (change.name, change.is_of_operator) for each in before):
            raise ConfigError("a state is transformed twice", hint="compose the functions", uid=uid, state=change.name)
        self._changes[uid] = (*before, change)
        return self

    def _kept_operators(self) -> dict[str, OperatorState]:
        """Returns the operators of the existing savepoint that are not removed, by uid."""
        operators = self._existing.document.manifest.operators if self._existing else []
        return {operator.uid: operator for operator in operators if operator.uid not in self._removed}

    def _kept_operator(self, uid: str) -> OperatorState:
        if self._existing is None:
            raise ConfigError(
                "a new savepoint has no operator that could be changed", hint="use from_savepoint(path)", uid=uid
            )
        found = self._kept_operators()
        if uid not in found:
            raise ConfigError(
                "the savepoint has no such operator", hint=did_you_mean(uid, found), uid=uid, found=sorted(found)
            )
        return found[uid]

    def _write_existing(self, target: SavepointFolder, at: datetime) -> Manifest:
        """Writes what is kept of the existing savepoint, transformed; returns its manifest, or an empty one."""
        if self._existing is None:
            return Manifest(
                job_uuid=self._clock.new_id(), generation=1, ordinal=1, operators=[], sources=[], epoch=EPOCH
            )
        self._existing.verify()
        opened = savepoint_snapshot(self._existing)
        operators = [operator for operator in opened.manifest.operators if operator.uid not in self._removed]
        changed = {
            o.uid: ChangedOperator(opened, o, self._changes[o.uid], self._clock)
            for o in operators
            if o.uid in self._changes
        }
        kept = [changed[o.uid].kept if o.uid in changed else o for o in operators]
        source = ManifestFiles(opened.storage, structs.replace(opened.manifest, operators=kept), opened.max_parallelism)
        copy = ManifestCopy(source, target.storage, target.folder)
        if self._existing.document.format is SavepointFormat.CANONICAL:
            manifest = copy.native(0)
        else:
            manifest = copy.canonical(SavepointSettings(), LocalWorkers())
        time = epoch_milliseconds(at)
        written = [changed[o.uid].write_changes(o, target, time) if o.uid in changed else o for o in manifest.operators]
        return structs.replace(manifest, operators=written, record=None, history=[])


def _layout(max_parallelism: int, parallelism: int | None) -> Layout:
    check_max_parallelism(max_parallelism)
    if parallelism is not None and not 1 <= parallelism <= max_parallelism:
        raise ConfigError("parallelism is out of range", hint="set it to 1 to max_parallelism", value=parallelism)
    return Layout(max_parallelism, parallelism or min(_DEFAULT_PARALLELISM, max_parallelism), 0)


def _write_operator(
    keyed: GivenOperator, states: OperatorStates, layout: Layout, target: SavepointFolder
) -> OperatorState:
    try:
        return OperatorState(
            uid=keyed.uid,
            parallelism=layout.parallelism,
            key_types=list(keyed.key.types),
            key_names=list(keyed.key.names),
            states=keyed.schemas(layout.at),
            subtasks=write_keyed(keyed, layout, target),
            operator_states=states.schemas(),
            parts=states.parts(layout, target),
        )
    except StateflowError as e:
        e.add_facts(operator=keyed.uid)
        raise
