"""The table of a PostgreSQL sink: publishes and rewinds in one transaction each, and creates and checks the table.

The checks ensure that an existing table will have exactly the sink's rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import pyarrow as pa
from psycopg import sql

from stateflow import failpoints
from stateflow.api.schema import Column, RowSchema
from stateflow.api.sink import SinkContext, SinkRewind, Successor, TableChanges
from stateflow.clock import SystemClock
from stateflow.connectors.postgres.statements import (
    Relation,
    Undo,
    Upsert,
    copy_rows,
    create_table,
    lock_table,
    read_relation,
    schema_privileges,
    table_name,
)
from stateflow.connectors.postgres.target import LONGEST_NAME, PostgresSettings, postgres_type, target_field
from stateflow.connectors.postgres.transactions import (
    Connection,
    Position,
    TokenTable,
    TransactionUnknown,
    create_own_tables,
    own_tables_exist,
    transaction,
)
from stateflow.connectors.staged_output import StagedTable, as_declared
from stateflow.connectors.store_assignment import assign, nullable
from stateflow.connectors.upserts import winning_rows
from stateflow.errors import InternalError, JobDefinitionError, SchemaMismatch, SinkDiverged, SinkRefused, StorageError
from stateflow.state.handles import Committable
from stateflow.storage.paths import parse_data
from stateflow.types.columns.shapes import Shape

Change = Callable[[Connection], None]
"""Changes the table within a transaction."""


class PostgresTable(StagedTable):
    """A table at one version of the sink.

    Args:
        settings: of the sink.
        context: the sink.
        relation: the table in the catalog.
        position: of the sink.
    """

    def __init__(
        self, settings: PostgresSettings, context: SinkContext, relation: Relation, position: Position
    ) -> None:
        super().__init__(context)
        self.table_id = position.table_id
        self.version = position.version
        self.token = position.token
        self.successor = Successor.parse(position.successor) if position.successor else None
        self._settings = settings
        self._relation = relation
        self._target = target_schema(relation, context.schema)
        self._position = position
        self._tokens = TokenTable(settings.name.schema, relation.oid)

    def commit(self, token: int, committables: list[Committable]) -> int | None:
        batches = self._staged(committables)
        if self._settings.upsert is None:
            return self._change(token, lambda connection: self._append(connection, batches))
        rows = pa.Table.from_batches(batches, nullable(self._target))
        return self._change(token, lambda connection: self._upsert(connection, rows, token))

    def plan_rewind(self, checkpoint_id: int) -> SinkRewind:
        if self._position.token <= checkpoint_id:
            return SinkRewind(self.version, None, 0, 0, ())
        undo = self._undo()
        with transaction(self._settings, read_only=True) as connection:
            own_tables_exist(connection, self._settings, self._relation.oid, with_undo=True)
            return undo.plan(connection, self._position, checkpoint_id)

    def changes_since(self, version: int) -> TableChanges:
        # Commits of other writers are not recorded anywhere.
        return TableChanges(self._settings.location, self.version > version, ())

    def rewind(self, to_version: int | None, token: int) -> int | None:
        if token <= self._position.token or not (to_version is None or 0 <= to_version < self.version):
            raise InternalError(
                "a rewind needs an older version and a larger token",
                table=self._settings.location,
                version=self.version,
                to_version=to_version,
                known=self.token,
                token=token,
            )
        if to_version is None:
            return self._change(token, lambda connection: None)
        undo, version, position = self._undo(), to_version, replace(self._position, token=token)
        return self._change(token, lambda c: undo.restore(c, self._relation, version, position))

    def take_over(self, token: int, former: Mapping[str, int], by: Successor) -> int | None:
        return self._change(token, lambda connection: None, former, by)

    def _change(
        self, token: int, change: Change, former: Mapping[str, int] = MappingProxyType({}), by: Successor | None = None
    ) -> int | None:
        """Changes the table and sets the token in one transaction; returns the new version.

        Returns None if the sink has another position by then, or if the answer to the COMMIT was lost. The next handle
        shows which: it waits for the row of the token while the transaction is not decided.
        """
        version, application = self.version + 1, self.context.application
        try:
            with transaction(self._settings) as connection:
                if not (self._is_current(connection) and self._end(connection, former, by)):
                    connection.rollback()
                    return None
                change(connection)
                failpoints.hit("postgres.written")
                self._tokens.set(connection, application, token, version)
                if self._settings.undo is not None:
                    undo = self._undo()
                    undo.mark(connection, version, token)
                    undo.prune(connection, self._settings.undo)
        except TransactionUnknown:
            return None
        return version

    def _is_current(self, connection: Connection) -> bool:
        """Locks the table and the token, and returns whether they are those of the handle."""
        lock_table(connection, self._settings.name, excludes_writers=self._settings.undo is not None)
        # By its name, which may be that of another table now.
        relation = read_relation(connection, self._settings.name)
        if relation is None or relation.oid != self._relation.oid:
            return False
        # In this transaction again, which is the one that uses them.
        if not own_tables_exist(connection, self._settings, relation.oid, self._settings.undo is not None):
            return False
        application = self.context.application
        if not self._position.token:
            # Two new job roots have rows of their own to lock: without this lock, both would find that no other one has
            # published. Before the row of the application, so that two transactions do not wait for each other.
            self._tokens.lock_first(connection)
        self._tokens.insert(connection, application, self.table_id)
        return self._tokens.read(connection, application, lock=True) == self._position

    def _end(self, connection: Connection, former: Mapping[str, int], by: Successor | None) -> bool:
        """Ends former applications, and returns whether they have the given tokens."""
        # In one order, so that two transactions do not wait for each other.
        for application in sorted(former):
            self._tokens.insert(connection, application, self.table_id)
            if self._tokens.read(connection, application, lock=True).token != former[application]:
                return False
            self._tokens.end(connection, application, by.text if by else "")
        return True

    def _append(self, connection: Connection, batches: Iterator[pa.RecordBatch]) -> None:
        tables = (pa.Table.from_batches([batch]) for batch in batches)
        copy_rows(connection, table_name(self._settings.name), tables, self.context.schema.names)

    def _upsert(self, connection: Connection, rows: pa.Table, token: int) -> None:
        assert self._settings.upsert is not None
        upsert = Upsert(self._settings.name, self._settings.upsert, self.context.schema, self._relation)
        if not len(rows):
            return
        upsert.stage(connection, winning_rows(rows, upsert.settings))
        if self._settings.undo is not None:
            self._undo().record(connection, self.version + 1, token)
        upsert.apply(connection)

    def _undo(self) -> Undo:
        """Returns the former rows. Raises SinkRefused if the sink stores none."""
        if self._settings.undo is None or self._settings.upsert is None:
            raise SinkRefused(
                "the table in PostgreSQL cannot be rewound: the sink does not store former rows",
                hint='keep the table with --keep-table UID; PostgresSink(…, mode="upsert", undo=timedelta(days=7)) '
                "stores the rows that later checkpoints replace",
                table=self._settings.location,
            )
        upsert = Upsert(self._settings.name, self._settings.upsert, self.context.schema, self._relation)
        return Undo(upsert, self._relation.oid, self.context.application, self._settings.location)

    def _staged(self, committables: list[Committable]) -> Iterator[pa.RecordBatch]:
        """Yields the staged rows, barrier by barrier, with the columns that the sink has now, as the table has them."""
        schema, facts = self.context.schema, {"table": self._settings.location}
        for batch in self.staged_rows(sorted(committables, key=_order)):
            yield assign(as_declared(batch, schema, self._settings.location), self._target, facts)


def _order(committable: Committable) -> tuple[int, int, str]:
    key = parse_data(committable.path)
    return (key.generation, key.ordinal, key.name) if key else (0, 0, "")


_LOCK = 0x5F5F_73F1
"""Number of the advisory lock under which tables are created: concurrent ones would fail."""
_TRIES = 5
_clock = SystemClock()


def check_table(settings: PostgresSettings, schema: RowSchema) -> tuple[Relation | None, str | None]:
    """Returns the table, None if it does not exist, and its id, None if it has none. Changes nothing.

    Raises:
        JobDefinitionError: a name of a column is too long.
        SinkRefused, SchemaMismatch: the table cannot be used, or not be created.
        StorageError: the server cannot be reached.
    """
    if not schema.names:
        raise JobDefinitionError("a table needs at least one column", row_class=schema.row_class.__name__)
    if cut := [name for name in schema.names if len(name.encode()) > LONGEST_NAME]:
        raise JobDefinitionError(
            "a column has a longer name than PostgreSQL keeps",
            hint="use a shorter name",
            columns=cut,
            limit=LONGEST_NAME,
        )
    with transaction(settings, read_only=True) as connection:
        relation = read_relation(connection, settings.name)
        has_own = own_tables_exist(connection, settings, relation.oid if relation else None, settings.undo is not None)
        if relation is None or not has_own:
            _check_may_create(settings, connection)
        if relation is None:
            return None, None
        check_relation(settings, relation, schema)
        if not own_tables_exist(connection, settings, relation.oid, with_undo=False):
            return relation, None
        return relation, TokenTable(settings.name.schema, relation.oid).read(connection, "").table_id or None


def prepare_table(settings: PostgresSettings, schema: RowSchema, application: str) -> str:
    """Creates what does not exist, after `check_table`; returns the id of the table. Raises as that does."""
    for _ in range(_TRIES):
        try:
            with transaction(settings) as connection:
                return _prepare(settings, connection, schema, application)
        except TransactionUnknown:
            # Whatever was created exists, or is created now.
            continue
    raise StorageError("the table in PostgreSQL could not be prepared", table=settings.location, tries=_TRIES)


def open_relation(settings: PostgresSettings, schema: RowSchema, application: str) -> tuple[Relation, Position]:
    """Returns the table and the position of the sink, both of one instant.

    Raises:
        SinkRefused, SchemaMismatch: the table cannot be used.
        SinkDiverged: the table does not exist, or is another one.
    """
    with transaction(settings, read_only=True) as connection:
        relation = read_relation(connection, settings.name)
        if relation is None:
            raise _diverged(settings, "the sink's table no longer exists")
        check_relation(settings, relation, schema)
        # Former rows do not matter for the position, and `undo` may be new.
        if not own_tables_exist(connection, settings, relation.oid, with_undo=False):
            raise _diverged(settings, "the table with the sink's token no longer exists")
        position = TokenTable(settings.name.schema, relation.oid).read(connection, application)
        if not position.table_id:
            raise _diverged(settings, "the sink's table was replaced by another table")
        return relation, position


def other_jobs(settings: PostgresSettings, uid: str) -> frozenset[str]:
    """Returns the ids of all jobs whose sink of that uid has published to the table."""
    with transaction(settings, read_only=True) as connection:
        relation = read_relation(connection, settings.name)
        if relation is None or not own_tables_exist(connection, settings, relation.oid, with_undo=False):
            return frozenset()
        return TokenTable(settings.name.schema, relation.oid).other_jobs(connection, uid)


def _prepare(settings: PostgresSettings, connection: Connection, schema: RowSchema, application: str) -> str:
    relation = read_relation(connection, settings.name)
    has_own = own_tables_exist(connection, settings, relation.oid if relation else None, settings.undo is not None)
    if relation is None or not has_own:
        connection.execute(sql.SQL("SELECT pg_advisory_xact_lock({})").format(_LOCK))
        create_own_tables(connection, settings.name.schema, settings.undo is not None)
        relation = read_relation(connection, settings.name)
        if relation is None:
            create_table(connection, settings.name, schema, settings.upsert.keys if settings.upsert else ())
            relation = read_relation(connection, settings.name)
    if relation is None:
        raise StorageError("the table was created in PostgreSQL, but cannot be found", table=settings.location)
    check_relation(settings, relation, schema)
    # Another process may have created them meanwhile.
    if not own_tables_exist(connection, settings, relation.oid, settings.undo is not None):
        raise StorageError(
            "the sink's own tables were created in PostgreSQL, but cannot be found", table=settings.location
        )
    tokens = TokenTable(settings.name.schema, relation.oid)
    tokens.identify(connection, f"{relation.oid}-{_clock.new_id()}")
    table_id = tokens.read(connection, application).table_id
    tokens.insert(connection, application, table_id)
    return table_id


def _check_may_create(settings: PostgresSettings, connection: Connection) -> None:
    schema = settings.name.schema
    privileges = schema_privileges(connection, schema)
    if privileges is None or not all(privileges):
        raise SinkRefused(
            "the sink's tables cannot be created in PostgreSQL: "
            + ("the schema does not exist" if privileges is None else "privileges for the schema are missing"),
            hint=f"CREATE SCHEMA {schema}" if privileges is None else f"GRANT USAGE, CREATE ON SCHEMA {schema} TO …",
            table=settings.location,
            schema=schema,
        )


def _diverged(settings: PostgresSettings, message: str) -> SinkDiverged:
    return SinkDiverged(message, hint="restore it, or give the sink a new uid", table=settings.location)


_TABLES = ("r", "p")
_PERMANENT = "p"


@dataclass(frozen=True)
class _Refusal:
    """Why a table is refused, and what changes that."""

    reason: str
    hint: str
    facts: dict[str, object]


def check_relation(settings: PostgresSettings, relation: Relation, schema: RowSchema) -> None:
    """Checks a table.

    Args:
        schema: the columns that the sink writes.

    Raises:
        SinkRefused: a property of the table would change, hide or lose rows, or make each insert fail.
        SchemaMismatch: columns are missing, or cannot have all values of the rows.
    """
    for refusal in _refusals(settings, relation, schema):
        raise SinkRefused(
            f"the table in PostgreSQL cannot be written to: {refusal.reason}",
            hint=refusal.hint,
            table=settings.location,
            **refusal.facts,
        )
    misfits = [column.name for column in schema.columns if _target(relation, column) is None]
    if misfits:
        raise SchemaMismatch(
            "the sink's rows do not match the columns of the table in PostgreSQL",
            hint="change the row class, or the table with ALTER TABLE",
            table=settings.location,
            declared={name: postgres_type(_shape(schema, name)) for name in misfits},
            found={name: column.type if (column := relation.column(name)) else None for name in misfits},
        )


def target_schema(relation: Relation, schema: RowSchema) -> pa.Schema:
    """Returns the columns of rows as a table stores them, for `assign`; one that it lacks may be null."""
    own = {field.name: field.with_nullable(True) for field in schema.arrow}
    return pa.schema([_target(relation, column) or own[column.name] for column in schema.columns])


def _target(relation: Relation, column: Column) -> pa.Field | None:
    found = relation.column(column.name)
    return None if found is None else target_field(column, found.type, found.is_required)


def _shape(schema: RowSchema, name: str) -> Shape:
    return schema.column(name).shape


def _refusals(settings: PostgresSettings, relation: Relation, schema: RowSchema) -> Iterator[_Refusal]:
    yield from _kind_refusals(settings, relation)
    yield from _column_refusals(relation, schema)
    if settings.upsert is not None and frozenset(settings.upsert.keys) not in relation.unique:
        keys = list(settings.upsert.keys)
        hint = f"ALTER TABLE {settings.name} ADD PRIMARY KEY ({', '.join(keys)})"
        yield _Refusal("no unique index has exactly the keys of the upsert", hint, {"keys": keys})


def _kind_refusals(settings: PostgresSettings, relation: Relation) -> Iterator[_Refusal]:
    name = settings.name
    if relation.kind not in _TABLES:
        yield _Refusal("it is a view, a foreign table or the like", "use a table", {"relkind": relation.kind})
    if relation.persistence != _PERMANENT:
        reason = "a crash of the server would empty it, but not the sink's token"
        yield _Refusal(reason, f"ALTER TABLE {name} SET LOGGED", {"property": "UNLOGGED"})
    if relation.has_rules:
        yield _Refusal("a rule may rewrite statements", "use a trigger instead of the rule", {"property": "RULE"})
    if settings.upsert is not None and relation.hides_rows:
        hint = f"ALTER TABLE {name} DISABLE ROW LEVEL SECURITY, or use a role with BYPASSRLS"
        yield _Refusal("row security may hide rows of a key", hint, {"property": "ROW LEVEL SECURITY"})
    needed = {"SELECT", "INSERT", "UPDATE", "DELETE"} if settings.upsert else {"INSERT"}
    if missing := sorted(needed - relation.privileges):
        hint = f"GRANT {', '.join(missing)} ON {name} TO the sink's user"
        yield _Refusal("privileges are missing", hint, {"privileges": missing})


def _column_refusals(relation: Relation, schema: RowSchema) -> Iterator[_Refusal]:
    declared = {column.name: column for column in schema.columns}
    for column in relation.columns:
        facts: dict[str, object] = {"column": column.name}
        ours = declared.get(column.name)
        if ours is None and not column.may_be_omitted:
            yield _Refusal("a required column is not in the rows", "give it a default, or declare it", facts)
        if ours is not None and not column.is_insertable:
            reason = "the values of a column of the rows are generated"
            yield _Refusal(reason, "remove the column from the row class", facts)
