"""Operators of an existing savepoint whose states or timers are replaced by what functions return for their rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from stateflow.bootstrap.encoded_entries import GivenKey, declare, new_keyed_state
from stateflow.bootstrap.encoded_values import name_state_in_errors
from stateflow.bootstrap.frames import WRITTEN_AT, KeyedStateFrame
from stateflow.bootstrap.keyed_files import write_local
from stateflow.bootstrap.layout import GivenOperator, Layout, SavepointFolder, StateRows, check_timers, state_rows
from stateflow.bootstrap.operator_states import OperatorStateRows, store_parts
from stateflow.checkpoint.log.documents import OperatorState
from stateflow.checkpoint.savepoints.canonical.writer import LocalCopies, shards_of
from stateflow.clock import Clock
from stateflow.config.settings import SavepointSettings
from stateflow.errors import ConfigError, SchemaMismatch, StateflowError, UserCodeError
from stateflow.helpers import did_you_mean
from stateflow.query.snapshot import Snapshot
from stateflow.query.state_table import TIMERS, KeyedTable, OperatorTable, key_fields
from stateflow.query.value_types import Refused, accepts_local_datetimes
from stateflow.runtime.user_code import find_user_line
from stateflow.state.backends.entry_stream import EntryColumns
from stateflow.state.handles import Base, OperatorContent, StateSchema, SubtaskState
from stateflow.state.kinds.operator_state import BROADCAST, UNION
from stateflow.state.operator_content import read_parts
from stateflow.state.stored_key import STATE_PART, TIMER_IDS, expiry_ids, state_id
from stateflow.types.descriptors import MapStateDescriptor, StateDescriptor
from stateflow.types.key_groups import KeyGroupRange

Transform = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Returns the new rows of some rows of a state, in the columns of `stateflow.read_state`."""

_NO_ROWS = pa.table({})


@dataclass(frozen=True)
class StateTransformation:
    """New rows of a state, or of the timers.

    Attributes:
        descriptor: the state as the job declares it from now on; None for the timers.
        function: returns the new rows of some rows.
        is_of_operator: whether it is operator state or broadcast state.
    """

    descriptor: StateDescriptor | None
    function: Transform
    is_of_operator: bool = False

    @property
    def name(self) -> str:
        """Name of the state; `TIMERS` for the timers."""
        return self.descriptor.name if self.descriptor else TIMERS

    def check(self, operator: OperatorState) -> None:
        """Raises ConfigError if an operator has no such state, or an error of its declaration."""
        names = [TIMERS] if operator.key_types else []
        if self.is_of_operator:
            is_map = isinstance(self.descriptor, MapStateDescriptor)
            names = [schema.name for schema in operator.operator_states if (schema.kind == BROADCAST) == is_map]
        elif self.descriptor:
            names = [schema.name for schema in operator.states]
        if self.name not in names:
            raise ConfigError(
                "the operator has no such state",
                hint=did_you_mean(self.name, names),
                uid=operator.uid,
                state=self.name,
                found=sorted(names),
            )
        if self.is_of_operator:
            _ = self.rows_of(operator, _NO_ROWS).schema
        elif self.descriptor:
            declare(new_keyed_state(0), self.descriptor)

    def refused(self, operator: OperatorState) -> Refused:
        """Returns the stored values that the function may not get, since new rows could not have them."""
        if self.descriptor is None:
            return Refused.NOTHING
        if self.is_of_operator:
            schema = self.rows_of(operator, _NO_ROWS).schema
        else:
            schema = declare(new_keyed_state(0), self.descriptor).schema
        return Refused.ABSENT | Refused.ZONE if accepts_local_datetimes(schema.type) else Refused.ABSENT

    def rows_of(self, operator: OperatorState, rows: pa.Table) -> OperatorStateRows:
        """Returns new rows of operator state, of the kind that it has."""
        assert self.descriptor is not None
        kinds = {schema.name: schema.kind for schema in operator.operator_states}
        return OperatorStateRows(self.descriptor, rows, kinds[self.name] == UNION)

    def applied(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the new rows of each batch, all with the same columns.

        Raises:
            UserCodeError: the function has raised an exception.
            SchemaMismatch: it has returned another object, or batches of different columns.
        """
        first: pa.Schema | None = None
        for batch in batches:
            with name_state_in_errors(self.name):
                found = self._applied(batch)
                first = found.schema if first is None else first
                if not found.schema.equals(first):
                    raise SchemaMismatch(
                        "a transformation returned batches of different columns",
                        hint="cast the columns: an empty or null column has another type",
                        first=str(first),
                        found=str(found.schema),
                    )
            yield found

    def _applied(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            found = self.function(batch)
        except StateflowError:
            raise
        except Exception as e:
            raise UserCodeError(
                f"a transformation raised {type(e).__name__}: {e}",
                hint="fix the function; the savepoint is unchanged",
                where=find_user_line(e),
            ) from e
        if not isinstance(found, pa.RecordBatch):
            raise SchemaMismatch(
                "a transformation must return a pyarrow.RecordBatch",
                hint="build it with pyarrow.RecordBatch.from_pydict, for example",
                type=type(found).__name__,
            )
        return found


@dataclass(frozen=True)
class ChangedOperator:
    """An operator of an existing savepoint, and what changes of it.

    Attributes:
        opened: the savepoint, whose files have complete keys.
        operator: the operator there.
        changes: the changes, each of another state.
        clock: the clock of the readers.
    """

    opened: Snapshot
    operator: OperatorState
    changes: tuple[StateTransformation, ...]
    clock: Clock

    @property
    def kept(self) -> OperatorState:
        """The operator without the state that is written again."""
        subtasks = [] if self._keyed else self.operator.subtasks
        return replace(self.operator, subtasks=subtasks, parts=[] if self._of_operator else self.operator.parts)

    @property
    def _keyed(self) -> dict[str, StateTransformation]:
        return {change.name: change for change in self.changes if not change.is_of_operator}

    @property
    def _of_operator(self) -> dict[str, StateTransformation]:
        return {change.name: change for change in self.changes if change.is_of_operator}

    def write_changes(self, copied: OperatorState, target: SavepointFolder, at: int) -> OperatorState:
        """Writes what `kept` does not have; returns the operator of the new savepoint.

        Args:
            copied: `kept`, whose files are copied.
            target: where it is written.
            at: the time of the writer, in milliseconds since 1970.

        Raises:
            StateflowError: a row cannot be stored; the error has operator, state and key.
        """
        try:
            if self._keyed:
                copied = self._with_keyed_state(copied, target, at)
            return self._with_operator_state(copied, target) if self._of_operator else copied
        except StateflowError as e:
            e.add_facts(operator=self.operator.uid)
            raise

    def _with_keyed_state(self, copied: OperatorState, target: SavepointFolder, at: int) -> OperatorState:
        changes, stored = self._keyed, self.operator
        layout = Layout(self.opened.max_parallelism, stored.parallelism, at, self.opened.manifest.epoch)
        key = GivenKey(tuple(field.name for field in key_fields(stored)), tuple(stored.key_types))
        frames = {name: self._frame(change) for name, change in sorted(changes.items())}
        timers = frames.get(TIMERS)
        if timers is not None:
            check_timers(stored.uid, timers, key.names)
        declared = [(change.descriptor, frames[name]) for name, change in sorted(changes.items())]
        keyed = GivenOperator(
            stored.uid,
            key,
            tuple(_in_order(KeyedStateFrame(of, frame), key) for of, frame in declared if of),
            timers,
            kept=tuple(schema for schema in stored.states if schema.name not in changes),
            stored=tuple(stored.states),
        )
        subtasks = write_local(keyed, layout, target, self._kept_entries())
        if timers is None:
            subtasks = [self._with_timers(subtask) for subtask in subtasks]
        return replace(copied, states=keyed.schemas(at), subtasks=subtasks)

    def _frame(self, change: StateTransformation) -> pa.RecordBatchReader:
        """Returns the new rows of a keyed state, or of the timers."""
        before = next((schema for schema in self.operator.states if schema.name == change.name), None)
        table = KeyedTable(self.operator, before, refused=change.refused(self.operator))
        read = table.batches(self.opened.storage, self.clock, table.schema.names)
        given = change.applied(batch if before is None else _with_times(batch, before) for batch in read)
        first = next(given, None)
        if first is None:
            return pa.RecordBatchReader.from_batches(table.schema, [])
        return pa.RecordBatchReader.from_batches(first.schema, chain([first], given))

    def _kept_entries(self) -> Iterator[EntryColumns]:
        """Yields the entries of the states that do not change, and of the timers unless they do."""
        ids = {state_id(name) for name in self._keyed} | {each for name in self._keyed for each in expiry_ids(name)}
        if TIMERS in self._keyed:
            ids |= set(TIMER_IDS.values())
        one = replace(self.opened.manifest, operators=[self.operator])
        with LocalCopies() as copies:
            for shard in shards_of(one, self.opened.max_parallelism, SavepointSettings(max_workers=1)):
                for block in copies.entries(shard, self.opened.storage):
                    kept = [(k, v) for k, v in zip(block.keys, block.values, strict=True) if k[STATE_PART] not in ids]
                    if kept:
                        yield EntryColumns.of([key for key, _ in kept], [value for _, value in kept])

    def _with_timers(self, written: SubtaskState) -> SubtaskState:
        """Returns the state of a subtask with lower bounds of the times of all timers of the operator."""
        earliest = Base(0, KeyGroupRange(0, 0), tuple(self.operator.subtasks)).earliest_timers
        return replace(written, event_timer=earliest.event, processing_timer=earliest.processing)

    def _with_operator_state(self, copied: OperatorState, target: SavepointFolder) -> OperatorState:
        changes, stored = self._of_operator, self.operator
        contents = (
            (part.subtask, self._changed(part.subtask, content))
            for part, content in read_parts(self.opened.storage, stored.parts)
        )
        schemas = [
            changes[schema.name].rows_of(stored, _NO_ROWS).schema if schema.name in changes else schema
            for schema in stored.operator_states
        ]
        return replace(copied, operator_states=schemas, parts=store_parts(stored.uid, contents, target))

    def _changed(self, subtask: int, content: OperatorContent) -> OperatorContent:
        """Returns the operator state of a subtask with the new rows of its own rows; errors have its number."""
        try:
            for schema in self.operator.operator_states:
                if change := self._of_operator.get(schema.name):
                    table = OperatorTable(self.operator, schema, change.refused(self.operator))
                    content = self._with_rows(change, table, subtask, content)
        except StateflowError as e:
            e.add_facts(subtask=subtask)
            raise
        return content

    def _with_rows(
        self, change: StateTransformation, table: OperatorTable, subtask: int, content: OperatorContent
    ) -> OperatorContent:
        batches = list(change.applied(table.rows_of(subtask, content, table.schema.names)))
        if not batches:
            return content
        rows = change.rows_of(self.operator, pa.Table.from_batches(batches))
        with name_state_in_errors(change.name):
            return rows.replace_state(content, rows.encode())


def _in_order(given: KeyedStateFrame, key: GivenKey) -> StateRows:
    """Returns rows whose elements of lists are in the order of the rows: functions see them so."""
    with name_state_in_errors(given.descriptor.name):
        rows = state_rows(given, key)
    return dataclasses.replace(rows, columns=dataclasses.replace(rows.columns, order_by=()))


def _with_times(batch: pa.RecordBatch, before: StateSchema) -> pa.RecordBatch:
    """Returns stored rows with a time for each entry with a TTL; raises ConfigError where it has not begun."""
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
