"""The writer of savepoints: state and positions for a job that has not run yet."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self, TypeVar

from msgspec import structs

from stateflow.bootstrap.changes import SavepointChanges
from stateflow.bootstrap.document import Facts, complete, time_of_savepoint
from stateflow.bootstrap.encoding.entries import EPOCH
from stateflow.bootstrap.encoding.frames import KeyedStateFrame, check_frame
from stateflow.bootstrap.encoding.keys import KeyColumns
from stateflow.bootstrap.existing import Existing
from stateflow.bootstrap.keyed_files.write import write_keyed
from stateflow.bootstrap.layout import KeyedOperator, Layout, Target, check_timers, state_rows
from stateflow.bootstrap.operator_states import OperatorStateRows, OperatorStates, RawRows
from stateflow.bootstrap.positions import AnySource, GivenSource, Position, with_positions, with_stored_logs
from stateflow.checkpoint.log.documents import Manifest, OperatorState
from stateflow.checkpoint.log.manifest_files import state_bytes
from stateflow.checkpoint.savepoints.catalog import savepoint_at
from stateflow.checkpoint.savepoints.names import check_savepoint_name
from stateflow.clock import Clock, SystemClock, epoch_milliseconds
from stateflow.errors import ConfigError, StateflowError
from stateflow.ids import check_name
from stateflow.requesters import os_user
from stateflow.storage import open_location
from stateflow.types.descriptors import ListStateDescriptor, MapStateDescriptor
from stateflow.types.key_groups import DEFAULT_MAX_PARALLELISM, check_max_parallelism

if TYPE_CHECKING:
    from stateflow.bootstrap.encoding.frames import Frame

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

_DEFAULT_PARALLELISM = 4
Key = str | Sequence[str] | Mapping[str, str]


@dataclass
class _Operator:
    """What the writer was given for an operator."""

    keyed: KeyedOperator
    states: OperatorStates


class SavepointWriter(SavepointChanges):
    """Writes a savepoint from DataFrames, from which a new job root starts: ``run --from-savepoint``.

    Frames are DataFrames of Spark, or Arrow tables, record batches and readers. Nothing is read or written before
    `write`. Rows of DataFrames do not pass this process: tasks of Spark write the files. The savepoint has the
    canonical format; a job continues from it with any state backend and parallelism.

    Create it with `new`, or with `from_savepoint` to change an existing savepoint.
    """

    def __init__(
        self,
        job: str,
        layout: Layout,
        on_spark: bool | None = None,
        clock: Clock | None = None,
        existing: Existing | None = None,
    ) -> None:
        super().__init__(existing)
        self._job = job
        self._layout = layout
        self._on_spark = on_spark
        self._clock = clock or SystemClock()
        self._operators: dict[str, _Operator] = {}
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
        existing = Existing(savepoint_at(os.fspath(path)))
        document = existing.stored.document
        layout = _layout(document.max_parallelism, parallelism)
        return cls(document.job, layout, clock=clock, existing=existing)

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
            clock: time and ids; by default those of the system.

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
                name. Without types, those of the first frame are used.
            states: a frame for each keyed state.
            timers: a frame with the key columns, ``time``, and if it has them ``domain`` (``event`` or ``processing``;
                by default ``event``) and ``namespace``. Times are timestamps, or milliseconds since 1970.

        Raises:
            ConfigError: a frame lacks a column, or the uid was added before.
            StateError, JobDefinitionError: a declaration is not valid.
        """
        check_name("the uid of an operator", uid)
        if uid in self._operators or (self._existing and uid in self._existing.kept):
            raise ConfigError(
                "an operator was added twice",
                hint="pass all of its states in one call, after without_operator for one of an existing savepoint",
                uid=uid,
            )
        frames = [(given.descriptor.name, given.frame) for given in states]
        for name, frame in [*frames, *([("_timers", timers)] if timers is not None else [])]:
            check_frame(frame, f"{uid}.{name}")
        first = frames[0][1] if frames else timers
        columns = KeyColumns.of(key, first)
        if timers is not None:
            check_timers(uid, timers, columns.names)
        operator = KeyedOperator(uid, columns, tuple(state_rows(given, columns) for given in states), timers)
        operator.schemas(0)
        self._operators[uid] = _Operator(operator, OperatorStates(uid, ()))
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
        operator = _added(self._operators, uid)
        operator.states = operator.states.with_rows(OperatorStateRows(descriptor, frame, union))
        return self

    def with_broadcast_state(self, uid: str, descriptor: MapStateDescriptor[K, V], frame: Frame) -> SavepointWriter:
        """Adds a broadcast state; returns this writer. Arguments and errors as for `with_operator_state`.

        Args:
            uid: uid of an operator that was added.
            descriptor: the map, as the job declares it.
            frame: its entries: ``map_key``, and ``value`` or a column for each field of the values.
        """
        operator = _added(self._operators, uid)
        operator.states = operator.states.with_rows(OperatorStateRows(descriptor, frame))
        return self

    def with_raw_state(self, uid: str, *, partitions: Frame | None = None, key_groups: Frame | None = None) -> Self:
        """Adds raw state, as `snapshot_state` writes it; returns this writer. Errors as for `with_operator_state`.

        Args:
            uid: uid of an operator that was added.
            partitions: of raw operator state, in order: ``value``, their bytes.
            key_groups: raw keyed state: ``key_group`` and ``value``, a row for each key group that has some.
        """
        operator = _added(self._operators, uid)
        operator.states = operator.states.with_raw(RawRows(partitions, key_groups))
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
            name: name of the savepoint; by default, that of the folder.
            at: the time of the savepoint, which is that of entries with a time to live; by default that of a savepoint
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
        target = Target(storage, "")
        named = check_savepoint_name(name or storage.uri.rstrip("/").rpartition("/")[2])
        when = at or time_of_savepoint(target) or self._clock.now()
        when = when if when.tzinfo else when.replace(tzinfo=UTC)
        manifest = self._base(target, when)
        layout = replace(self._layout, at=epoch_milliseconds(when), epoch=manifest.epoch)
        manifest = with_positions(manifest, self._sources, self._on_spark, when)
        if manifest.spark is not None:
            manifest = structs.replace(manifest, spark=with_stored_logs(manifest.spark, target))
        added = [_written(each, layout, target) for each in self._operators.values()]
        operators = sorted((*manifest.operators, *added), key=lambda operator: operator.uid)
        size = state_bytes(operators)
        manifest = structs.replace(manifest, operators=operators, full_bytes=size, increment_bytes=size)
        base = self._existing.stored.document if self._existing else None
        stated = {uid: text for uid, given in self._sources.items() if (text := given.stated(uid))}
        facts = Facts(named, self._job, when, by or os_user(), reason, stated, base)
        complete(manifest, layout, facts, target, self._clock)
        return storage.uri

    def _base(self, target: Target, at: datetime) -> Manifest:
        """Writes what is kept of the existing savepoint; returns its manifest, or an empty one."""
        if self._existing:
            return self._existing.written(target, epoch_milliseconds(at), self._clock)
        return Manifest(job_uuid=self._clock.new_id(), generation=1, ordinal=1, operators=[], sources=[], epoch=EPOCH)


def _added(operators: Mapping[str, _Operator], uid: str) -> _Operator:
    if uid not in operators:
        raise ConfigError(
            "operator state belongs to an operator that was not added",
            hint='call with_operator before; without keyed state, it needs key={"column": "type"} only',
            uid=uid,
            known=sorted(operators),
        )
    return operators[uid]


def _layout(max_parallelism: int, parallelism: int | None) -> Layout:
    check_max_parallelism(max_parallelism)
    if parallelism is not None and not 1 <= parallelism <= max_parallelism:
        raise ConfigError("parallelism is out of range", hint="set it to 1 to max_parallelism", value=parallelism)
    return Layout(max_parallelism, parallelism or min(_DEFAULT_PARALLELISM, max_parallelism), 0)


def _written(given: _Operator, layout: Layout, target: Target) -> OperatorState:
    keyed, states = given.keyed, given.states
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
