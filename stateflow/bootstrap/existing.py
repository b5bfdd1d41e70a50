"""What a savepoint that is written keeps of an existing one, and what it changes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from stateflow.bootstrap.encoding.entries import declare, new_keyed_state
from stateflow.bootstrap.encoding.frames import NAMESPACE, WRITTEN_AT, KeyedStateFrame, sliced
from stateflow.bootstrap.encoding.keys import KeyColumns
from stateflow.bootstrap.keyed_files.sorting import EntrySorter
from stateflow.bootstrap.layout import KeyedOperator, Layout, Target, state_rows
from stateflow.checkpoint.log.documents import Manifest, OperatorState, SavepointFormat
from stateflow.checkpoint.savepoints.canonical.shares import shards_of
from stateflow.checkpoint.savepoints.canonical.workers import LocalWorkers
from stateflow.checkpoint.savepoints.canonical.writer import LocalCopies
from stateflow.checkpoint.savepoints.catalog import StoredSavepoint
from stateflow.checkpoint.savepoints.create import ManifestCopy, ManifestFiles
from stateflow.clock import Clock
from stateflow.config.settings import SavepointSettings
from stateflow.errors import ConfigError, SchemaMismatch
from stateflow.query.columns.reader import state_table
from stateflow.query.columns.state_table import key_fields
from stateflow.query.snapshot import Snapshot, savepoint_snapshot
from stateflow.scratch_folder import ScratchFolder
from stateflow.similar_names import did_you_mean
from stateflow.state.backends.entry_columns import EntryColumns
from stateflow.state.backends.entry_stream import GROUP_BYTES
from stateflow.state.handles import Base, EarliestTimers, StateSchema
from stateflow.state.kinds.key_context import KEY_OFFSET, state_id
from stateflow.state.kinds.ttl.entry_ttl import expiry_ids
from stateflow.types.descriptors import StateDescriptor
from stateflow.types.key_groups import KeyGroupRange

_BUCKETS = 256

Transform = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Returns the new rows of some rows of a state, in the columns of `stateflow.read_state`."""


@dataclass
class Existing:
    """An existing savepoint, and the changes of it.

    Attributes:
        stored: the savepoint.
        removed: uids of operators that are not kept.
        transforms: by uid of the operator and name of the state.
    """

    stored: StoredSavepoint
    removed: set[str] = field(default_factory=set)
    transforms: dict[str, dict[str, tuple[StateDescriptor, Transform]]] = field(default_factory=dict)

    @property
    def manifest(self) -> Manifest:
        """The manifest of the savepoint."""
        return self.stored.document.manifest

    @property
    def kept(self) -> dict[str, OperatorState]:
        """The operators that are not removed, by uid."""
        return {operator.uid: operator for operator in self.manifest.operators if operator.uid not in self.removed}

    def operator(self, uid: str) -> OperatorState:
        """Returns an operator that is kept. Raises ConfigError if there is none."""
        found = self.kept
        if uid not in found:
            raise ConfigError(
                "the savepoint has no such operator", hint=did_you_mean(uid, found), uid=uid, found=sorted(found)
            )
        return found[uid]

    def remove(self, uid: str) -> None:
        """Removes an operator. Raises ConfigError if it is not kept."""
        self.removed.add(self.operator(uid).uid)
        self.transforms.pop(uid, None)

    def add_transform(self, uid: str, descriptor: StateDescriptor, function: Transform) -> None:
        """Adds the transformation of a state. Raises ConfigError if the state does not exist, or has one already."""
        names = {schema.name for schema in self.operator(uid).states}
        if descriptor.name not in names:
            raise ConfigError(
                "the operator has no such state",
                hint=did_you_mean(descriptor.name, names),
                uid=uid,
                state=descriptor.name,
                found=sorted(names),
            )
        of_operator = self.transforms.setdefault(uid, {})
        if descriptor.name in of_operator:
            raise ConfigError("a state is transformed twice", hint="compose them", uid=uid, state=descriptor.name)
        declare(new_keyed_state(0), descriptor)
        of_operator[descriptor.name] = descriptor, function

    def written(self, target: Target, at: int, clock: Clock) -> Manifest:
        """Writes everything that is kept, transformed where it is to be; returns its manifest.

        Args:
            target: where it is written.
            at: the time of the writer, in milliseconds since 1970.
            clock: the clock of the readers.

        Raises:
            MissingFile, CorruptFile: a file of the savepoint is missing or damaged.
            StateflowError: a row of a transformation cannot be stored.
        """
        self.stored.verify()
        opened = savepoint_snapshot(self.stored)
        operators = [operator for operator in opened.manifest.operators if operator.uid not in self.removed]
        # Their keyed state is written apart.
        kept = [replace(o, subtasks=[]) if o.uid in self.transforms else o for o in operators]
        source = ManifestFiles(opened.storage, replace(opened.manifest, operators=kept), opened.max_parallelism)
        copy = ManifestCopy(source, target.storage, target.folder)
        if self.stored.document.format is SavepointFormat.CANONICAL:
            manifest = copy.native(0)
        else:
            manifest = copy.canonical(SavepointSettings(), LocalWorkers())
        transformed = {o.uid: o for o in operators if o.uid in self.transforms}
        changed = [
            self._transformed(_Stored(opened, transformed[o.uid], clock), o, target, at) if o.uid in transformed else o
            for o in manifest.operators
        ]
        return replace(manifest, operators=changed, record=None, history=[])

    def _transformed(self, stored: _Stored, copied: OperatorState, target: Target, at: int) -> OperatorState:
        """Returns an operator with transformed states; `copied` has its operator state."""
        operator, transforms = stored.operator, self.transforms[copied.uid]
        epoch = stored.opened.manifest.epoch
        layout = Layout(stored.opened.max_parallelism, operator.parallelism, at, epoch)
        key = KeyColumns(stored.key_names, tuple(operator.key_types))
        kept = tuple(schema for schema in operator.states if schema.name not in transforms)
        batches = [(d, stored.batches(d.name, function)) for _, (d, function) in sorted(transforms.items())]
        states = [state_rows(KeyedStateFrame(d, schema.empty_table()), key) for d, (schema, _) in batches]
        keyed = KeyedOperator(copied.uid, key, tuple(states), kept=kept, stored=tuple(operator.states))
        with ScratchFolder() as scratch:
            sorter = EntrySorter(keyed, layout, range(operator.parallelism), _BUCKETS, scratch.path)
            sorter.add(stored.without(frozenset(transforms)))
            for rows, (_, (_, given)) in zip(states, batches, strict=True):
                encoder = keyed.state_encoder(rows, layout)
                sorter.add(encoder.encode(part) for batch in given for part in sliced(batch))
            written = sorter.write_with_workers(target)
        timers = stored.earliest_timers
        subtasks = [replace(s, event_timer=timers.event, processing_timer=timers.processing) for s in written]
        return replace(copied, states=keyed.schemas(at), subtasks=subtasks)


@dataclass(frozen=True)
class _Stored:
    """An operator of the existing savepoint, whose keys of files are complete."""

    opened: Snapshot
    operator: OperatorState
    clock: Clock

    @property
    def key_names(self) -> tuple[str, ...]:
        """Names of the key columns in `stateflow.read_state`."""
        return tuple(field.name for field in key_fields(self.operator))

    @property
    def earliest_timers(self) -> EarliestTimers:
        """Lower bounds of the times of all timers."""
        return Base(0, KeyGroupRange(0, 0), tuple(self.operator.subtasks)).earliest_timers

    def batches(self, state: str, function: Transform) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Returns the schema of the new rows of a state, and these rows."""
        (before,) = (schema for schema in self.operator.states if schema.name == state)
        table = state_table(self.opened, self.operator.uid, state)
        read = table.batches(self.opened.storage, self.clock, table.schema.names)
        given = (_applied(function, _checked(batch, before), state) for batch in read)
        first = next(given, None)
        if first is None:
            return table.schema, iter(())
        return first.schema, _of_one_schema(chain([first], given), first.schema, state)

    def without(self, states: frozenset[str]) -> Iterator[EntryColumns]:
        """Yields the entries that are of none of some states."""
        ids = {state_id(name) for name in states} | {each for name in states for each in expiry_ids(name)}
        one = replace(self.opened.manifest, operators=[self.operator])
        with LocalCopies() as copies:
            for shard in shards_of(one, self.opened.max_parallelism, SavepointSettings(max_workers=1)):
                for block in copies.entries(shard, self.opened.storage):
                    kept = [(k, v) for k, v in zip(block.keys, block.values, strict=True) if _id(k) not in ids]
                    if kept:
                        yield EntryColumns.of([key for key, _ in kept], [value for _, value in kept])


def _id(stored: bytes) -> bytes:
    return stored[GROUP_BYTES:KEY_OFFSET]


def _checked(batch: pa.RecordBatch, before: StateSchema) -> pa.RecordBatch:
    """Returns stored rows with a time for each entry with a TTL; raises ConfigError for what cannot be rewritten."""
    if batch.column(NAMESPACE).null_count < batch.num_rows:
        raise ConfigError("a state with namespaces cannot be transformed", state=before.name)
    if WRITTEN_AT not in batch.schema.names or not batch.column(WRITTEN_AT).null_count:
        return batch
    if before.ttl_since is None:
        raise ConfigError(
            "a state has entries whose time to live has not begun",
            hint="run the job up to its first watermark, then make the savepoint",
            state=before.name,
        )
    times = pc.fill_null(batch.column(WRITTEN_AT), before.ttl_since)
    return batch.set_column(batch.schema.get_field_index(WRITTEN_AT), WRITTEN_AT, times)


def _applied(function: Transform, batch: pa.RecordBatch, state: str) -> pa.RecordBatch:
    found = function(batch)
    if not isinstance(found, pa.RecordBatch):
        raise SchemaMismatch(
            "a transformation returned no record batch",
            hint="return a pyarrow.RecordBatch",
            state=state,
            type=type(found).__name__,
        )
    return found


def _of_one_schema(batches: Iterator[pa.RecordBatch], schema: pa.Schema, state: str) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if not batch.schema.equals(schema):
            raise SchemaMismatch(
                "a transformation returned batches of different columns",
                hint="cast the columns: an empty or null column has another type",
                state=state,
                first=str(schema),
                found=str(batch.schema),
            )
        yield batch
