"""The table of a PostgreSQL sink, and its statements: the table is created and checked, rows are published and rewound.

Each commit and each rewind is one transaction. The checks ensure that an existing table will have exactly the sink's
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from types import MappingProxyType

import pyarrow as pa
from psycopg import sql

from stateflow import failpoints
from stateflow.api.schema import Column, RowSchema
from stateflow.api.sink import SinkContext, SinkRewind, Successor, TableChanges
from stateflow.clock import SystemClock
from stateflow.connectors.postgres.target import (
    LONGEST_NAME,
    UNDO,
    PostgresSettings,
    TableName,
    postgres_type,
    target_field,
    to_csv,
)
from stateflow.connectors.postgres.transactions import (
    Connection,
    TokenRow,
    TokenTable,
    TransactionUnknown,
    create_own_tables,
    own_tables_exist,
    transaction,
)
from stateflow.connectors.staged_output import StagedTable, cast_to_declared
from stateflow.connectors.store_assignment import assign_rows, nullable_schema
from stateflow.connectors.upserts import UpsertSettings, winning_rows
from stateflow.errors import InternalError, JobDefinitionError, SchemaMismatch, SinkDiverged, SinkRefused, StorageError
from stateflow.state.handles import Committable
from stateflow.storage.paths import parse_data
from stateflow.types.columns.row_kind import RETRACTIONS
from stateflow.types.columns.shapes import Leaf, Shape

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
        self, settings: PostgresSettings, context: SinkContext, relation: PostgresRelation, position: TokenRow
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
        rows = pa.Table.from_batches(batches, nullable_schema(self._target))
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
        """Locks the table and the token, and returns whether both are as the handle read them."""
        lock_table(connection, self._settings.name, excludes_writers=self._settings.undo is not None)
        # By its name, which may belong to another table now.
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
        upsert = PostgresUpsert(self._settings.name, self._settings.upsert, self.context.schema, self._relation)
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
        upsert = PostgresUpsert(self._settings.name, self._settings.upsert, self.context.schema, self._relation)
        return Undo(upsert, self._relation.oid, self.context.application, self._settings.location)

    def _staged(self, committables: list[Committable]) -> Iterator[pa.RecordBatch]:
        """Yields the staged rows, barrier by barrier, with the columns that the sink has now, as the table has them."""
        schema, facts = self.context.schema, {"table": self._settings.location}
        for batch in self.staged_rows(sorted(committables, key=_order)):
            yield assign_rows(cast_to_declared(batch, schema, self._settings.location), self._target, facts)


def _order(committable: Committable) -> tuple[int, int, str]:
    key = parse_data(committable.path)
    return (key.generation, key.ordinal, key.name) if key else (0, 0, "")


_LOCK = 0x5F5F_73F1
"""Number of the advisory lock under which tables are created: concurrent ones would fail."""
_TRIES = 5
_clock = SystemClock()


def check_table(settings: PostgresSettings, schema: RowSchema) -> tuple[PostgresRelation | None, str | None]:
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
            "the name of a column is longer than PostgreSQL permits",
            hint="use a shorter name",
            columns=cut,
            limit_bytes=LONGEST_NAME,
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


def open_relation(settings: PostgresSettings, schema: RowSchema, application: str) -> tuple[PostgresRelation, TokenRow]:
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


def check_relation(settings: PostgresSettings, relation: PostgresRelation, schema: RowSchema) -> None:
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


def target_schema(relation: PostgresRelation, schema: RowSchema) -> pa.Schema:
    """Returns the columns of rows as a table stores them, for `assign_rows`; one that it lacks may be null."""
    own = {field.name: field.with_nullable(True) for field in schema.arrow}
    return pa.schema([_target(relation, column) or own[column.name] for column in schema.columns])


def _target(relation: PostgresRelation, column: Column) -> pa.Field | None:
    found = relation.column(column.name)
    return None if found is None else target_field(column, found.type, found.is_required)


def _shape(schema: RowSchema, name: str) -> Shape:
    return schema.column(name).shape


def _refusals(settings: PostgresSettings, relation: PostgresRelation, schema: RowSchema) -> Iterator[_Refusal]:
    yield from _kind_refusals(settings, relation)
    yield from _column_refusals(relation, schema)
    if settings.upsert is not None and frozenset(settings.upsert.keys) not in relation.unique:
        keys = list(settings.upsert.keys)
        hint = f"ALTER TABLE {settings.name} ADD PRIMARY KEY ({', '.join(keys)})"
        yield _Refusal("no unique index has exactly the keys of the upsert", hint, {"keys": keys})


def _kind_refusals(settings: PostgresSettings, relation: PostgresRelation) -> Iterator[_Refusal]:
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


def _column_refusals(relation: PostgresRelation, schema: RowSchema) -> Iterator[_Refusal]:
    declared = {column.name: column for column in schema.columns}
    for column in relation.columns:
        facts: dict[str, object] = {"column": column.name}
        ours = declared.get(column.name)
        if ours is None and not column.may_be_omitted:
            yield _Refusal("a required column is not in the rows", "give it a default, or declare it", facts)
        if ours is not None and not column.is_insertable:
            reason = "the values of a column of the rows are generated"
            yield _Refusal(reason, "remove the column from the row class", facts)


# Aliases begin as no field of a row class does: `t` would otherwise be a column of that name.
STAGED = sql.Identifier("pg_temp", "_sf_staged")
"""The temporary table with the rows of a checkpoint that change the table."""
_COPY = sql.SQL("COPY {table} ({columns}) FROM STDIN (FORMAT csv)")
_STAGE = sql.SQL("CREATE TEMPORARY TABLE _sf_staged ({columns}) ON COMMIT DROP")
_DELETE = sql.SQL("DELETE FROM {table} _sf_t USING {staged} _sf_s WHERE {same_key} AND {deleted}")
# In the order of keys, as other writers of many rows do it, so that fewer transactions deadlock.
_INSERT = sql.SQL(
    "INSERT INTO {table} AS _sf_t ({columns}) SELECT {columns} FROM {staged} _sf_s WHERE {kept} ORDER BY {keys} "
    "ON CONFLICT ({keys}) DO {action}"
)


def columns_of(names: Iterable[str]) -> sql.Composed:
    """Returns quoted names, with commas."""
    return sql.SQL(", ").join(map(sql.Identifier, names))


def same_key(keys: Iterable[str], left: str = "_sf_t", right: str = "_sf_s") -> sql.Composed:
    """Returns the condition that rows of two tables have the same key."""
    return sql.SQL(" AND ").join(
        sql.SQL("{} = {}").format(sql.Identifier(left, name), sql.Identifier(right, name)) for name in keys
    )


def table_name(name: TableName) -> sql.Identifier:
    """Returns the quoted name of a table."""
    return sql.Identifier(name.schema, name.table)


def lock_table(connection: Connection, name: TableName, excludes_writers: bool) -> None:
    """Locks a table until the end of the transaction, so that it is not dropped or altered.

    Args:
        excludes_writers: whether other writers wait, too.
    """
    mode = sql.SQL("SHARE ROW EXCLUSIVE" if excludes_writers else "ROW EXCLUSIVE")
    connection.execute(sql.SQL("LOCK TABLE {} IN {} MODE").format(table_name(name), mode))


def copy_rows(connection: Connection, into: sql.Composable, rows: Iterable[pa.Table], names: Iterable[str]) -> None:
    """Copies rows into a table."""
    query = _COPY.format(table=into, columns=columns_of(names))
    with connection.cursor() as cursor, cursor.copy(query) as copy:
        for part in rows:
            for data in to_csv(part):
                copy.write(data)


@dataclass(frozen=True)
class PostgresUpsert:
    """Replaces and deletes rows by key.

    Attributes:
        name: the table.
        settings: how rows are matched.
        schema: columns of the staged rows, with the one that marks deletes.
        relation: the table in the catalog.
    """

    name: TableName
    settings: UpsertSettings
    schema: RowSchema
    relation: PostgresRelation

    @property
    def table(self) -> sql.Identifier:
        """The quoted name of the table."""
        return table_name(self.name)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the sink writes."""
        return self.settings.table_schema(self.schema).names

    def stage(self, connection: Connection, winners: pa.Table) -> None:
        """Creates the temporary table."""
        columns = (
            sql.SQL("{} {}").format(sql.Identifier(column.name), _type(self._staged_type(column)))
            for column in self.schema.columns
        )
        connection.execute(_STAGE.format(columns=sql.SQL(", ").join(columns)))
        copy_rows(connection, STAGED, [winners], self.schema.names)
        # Without it, the planner knows nothing of the temporary table.
        connection.execute(sql.SQL("ANALYZE {}").format(STAGED))

    def apply(self, connection: Connection) -> None:
        """Changes the table as the temporary table says."""
        keys, deleted = self.settings.keys, self._deleted
        kept: sql.Composable = sql.SQL("true")
        if deleted is not None:
            kept = sql.SQL("({}) IS NOT TRUE").format(deleted)
            if self.settings.by_content:
                deleted = sql.SQL(" AND ").join([deleted, *map(_equal, self._other_columns)])
            marked = {"same_key": same_key(keys), "deleted": deleted}
            connection.execute(_DELETE.format(table=self.table, staged=STAGED, **marked))
        parts = {"table": self.table, "staged": STAGED, "columns": columns_of(self.columns), "kept": kept}
        connection.execute(_INSERT.format(**parts, keys=columns_of(keys), action=self._action))

    def _staged_type(self, column: Column) -> str:
        """Returns the type of a column of the temporary table: the type in the table if a value may differ from it."""
        found, own = self.relation.column(column.name), postgres_type(column.shape)
        # The sink knows no other types: `check_relation` has compared them.
        return found.type if found and isinstance(column.shape, Leaf) and own not in ("uuid", "text") else own

    @property
    def _deleted(self) -> sql.Composable | None:
        """The condition that a staged row deletes its key; None if no row does."""
        if self.settings.row_kind:
            kinds = sql.SQL(", ").join(sql.Literal(kind.value) for kind in RETRACTIONS)
            return sql.SQL("_sf_s.{} IN ({})").format(sql.Identifier(self.settings.row_kind), kinds)
        return sql.SQL("_sf_s.{}").format(sql.Identifier(self.settings.deletes)) if self.settings.deletes else None

    @property
    def _action(self) -> sql.Composable:
        others = self._other_columns
        if not others:
            return sql.SQL("NOTHING")
        changes = (sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(column.name)) for column in others)
        return sql.SQL("UPDATE SET {}").format(sql.SQL(", ").join(changes))

    @property
    def _other_columns(self) -> list[Column]:
        """The columns that the sink writes and that are not part of the key."""
        columns = self.settings.table_schema(self.schema).columns
        return [column for column in columns if column.name not in self.settings.keys]


def create_table(connection: Connection, name: TableName, schema: RowSchema, keys: Iterable[str]) -> None:
    """Creates a table for rows of `schema`, with a primary key of the `keys`."""
    keys = tuple(keys)
    columns = [
        sql.SQL("{} {}").format(sql.Identifier(column.name), _type(postgres_type(column.shape)))
        for column in schema.columns
    ]
    if keys:
        columns.append(sql.SQL("PRIMARY KEY ({})").format(columns_of(keys)))
    connection.execute(sql.SQL("CREATE TABLE {} ({})").format(table_name(name), sql.SQL(", ").join(columns)))


def _equal(column: Column) -> sql.Composable:
    """Returns the condition that a column of the table has the value of the staged row."""
    own, staged = (sql.Identifier(side, column.name) for side in ("_sf_t", "_sf_s"))
    # An existing column may be json or text, which have no comparison with the type of the staged column.
    kind = {"jsonb": "::jsonb", "uuid": "::text"}.get(postgres_type(column.shape), "")
    equal = sql.SQL("{own}{kind} IS NOT DISTINCT FROM {staged}{kind}").format(own=own, staged=staged, kind=_type(kind))
    if column.nullable:
        return equal
    # The row may be older than the column.
    return sql.SQL("({} OR {} IS NULL)").format(equal, own)


def _type(name: str) -> sql.SQL:
    # Not an identifier: names of types have digits and several words. They come from this package.
    return sql.SQL(name)


_RESTORED = sql.Identifier("pg_temp", "_sf_restored")
_THIS_SINK = sql.SQL("table_oid = {oid} AND application = {application}")
# A key may have several staged rows that delete it.
_RECORD = sql.SQL(
    "INSERT INTO {undo} (table_oid, application, version, token, at, key, former) "
    "SELECT DISTINCT {oid}, {application}, {version}, {token}, now(), jsonb_build_object({key}), "
    "CASE WHEN _sf_t.{first} IS NOT NULL THEN to_jsonb(_sf_t.*) END "
    "FROM {changed} _sf_s LEFT JOIN {table} _sf_t ON {same_key}"
)
_MARK = sql.SQL(
    "INSERT INTO {undo} (table_oid, application, version, token, at) "
    "VALUES ({oid}, {application}, {version}, {token}, now())"
)
_PRUNE = sql.SQL(
    "DELETE FROM {undo} WHERE {this_sink} AND version <= "
    "(SELECT max(version) FROM {undo} WHERE {this_sink} AND key IS NULL AND at < now() - {kept}::interval)"
)
_FIRST = sql.SQL(
    "SELECT min(version) FILTER (WHERE token > {token}), count(*) FILTER (WHERE token > {token}), min(version), "
    "count(*) FILTER (WHERE token <= {token}) FROM {undo} WHERE {this_sink} AND key IS NULL"
)
_COUNT = sql.SQL("SELECT count(*) FROM {undo} WHERE {this_sink} AND key IS NULL AND version > {version}")
_OLDEST = sql.SQL(
    "SELECT DISTINCT ON (key) key, former FROM {undo} "
    "WHERE {this_sink} AND version > {version} AND key IS NOT NULL ORDER BY key, version"
)
_RESTORE = sql.SQL(
    "CREATE TEMPORARY TABLE _sf_restored ON COMMIT DROP AS "
    "SELECT {keys}, _sf_o.former AS _sf_former FROM ({oldest}) _sf_o "
    "CROSS JOIN LATERAL jsonb_populate_record(NULL::{table}, _sf_o.key) _sf_k"
)
_EFFECT = sql.SQL(
    "SELECT count(*) FILTER (WHERE _sf_t.{first} IS NOT NULL), count(*) FILTER (WHERE _sf_o.former IS NOT NULL) "
    "FROM ({oldest}) _sf_o CROSS JOIN LATERAL jsonb_populate_record(NULL::{table}, _sf_o.key) _sf_s "
    "LEFT JOIN {table} _sf_t ON {same_key} "
    "WHERE (CASE WHEN _sf_t.{first} IS NOT NULL THEN to_jsonb(_sf_t.*) END) IS DISTINCT FROM _sf_o.former"
)
_DELETE_NEW_ROWS = sql.SQL(
    "DELETE FROM {table} _sf_t USING {restored} _sf_s WHERE {same_key} AND _sf_s._sf_former IS NULL"
)
_UPDATE = sql.SQL(
    "UPDATE {table} _sf_t SET {changes} FROM {restored} _sf_r CROSS JOIN LATERAL "
    "jsonb_populate_record(NULL::{table}, _sf_r._sf_former) _sf_s WHERE _sf_r._sf_former IS NOT NULL AND {same_key}"
)
_INSERT_FORMER_ROWS = sql.SQL(
    "INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE SELECT {values} FROM {restored} _sf_r "
    "CROSS JOIN LATERAL jsonb_populate_record(NULL::{table}, _sf_r._sf_former) _sf_s "
    "WHERE _sf_r._sf_former IS NOT NULL AND NOT EXISTS (SELECT FROM {table} _sf_t WHERE {same_key})"
)


@dataclass(frozen=True)
class Undo:
    """The former rows that one sink has stored.

    Attributes:
        upsert: how the sink changes the table.
        oid: of the table.
        application: of the sink.
        location: of the table, for errors.
    """

    upsert: PostgresUpsert
    oid: int
    application: str
    location: str

    def record(self, connection: Connection, version: int, token: int, changed: sql.Identifier = STAGED) -> None:
        """Stores the rows that a version is about to change.

        Args:
            version: of the sink, after the change.
            token: that the version sets.
            changed: a temporary table with the keys of the rows.
        """
        keys = self.upsert.settings.keys
        pairs = (sql.SQL("{}::text, _sf_s.{}").format(name, sql.Identifier(name)) for name in keys)
        connection.execute(
            _RECORD.format(
                **self._names,
                version=version,
                token=token,
                key=sql.SQL(", ").join(pairs),
                first=sql.Identifier(keys[0]),
                changed=changed,
                same_key=same_key(keys),
            )
        )

    def mark(self, connection: Connection, version: int, token: int) -> None:
        """Stores that a version exists, whether or not it changes rows."""
        connection.execute(_MARK.format(**self._names, version=version, token=token))

    def prune(self, connection: Connection, kept: timedelta) -> None:
        """Deletes what is older than the given time."""
        connection.execute(_PRUNE.format(**self._names, this_sink=self._this_sink, kept=f"{kept.total_seconds()} s"))

    def plan(self, connection: Connection, position: TokenRow, checkpoint_id: int) -> SinkRewind:
        """Returns the effect of a rewind. Raises SinkDiverged if some of the former rows are no longer stored."""
        query = _FIRST.format(undo=self._undo, token=checkpoint_id, this_sink=self._this_sink)
        row = connection.execute(query).fetchone()
        assert row is not None
        first, later, oldest, earlier = row
        # The version before the first later one must be the one that the checkpoint saw.
        if not later or position.version - later != first - 1 or not (earlier or oldest == 1):
            raise self._too_old(checkpoint_id=checkpoint_id, oldest=oldest)
        effect = _EFFECT.format(
            **self._names,
            oldest=self._oldest(first - 1),
            first=sql.Identifier(self.upsert.settings.keys[0]),
            same_key=same_key(self.upsert.settings.keys),
        )
        found = connection.execute(effect).fetchone()
        assert found is not None
        return SinkRewind(position.version, first - 1, found[0], found[1], ())

    def restore(self, connection: Connection, relation: PostgresRelation, to_version: int, position: TokenRow) -> None:
        """Puts the rows of a version back, and stores those that this replaces for the next version.

        Args:
            position: of the sink, with the token that the rewind sets.
        """
        query = _COUNT.format(undo=self._undo, this_sink=self._this_sink, version=to_version)
        row = connection.execute(query).fetchone()
        if row is None or row[0] != position.version - to_version:
            raise self._too_old(version=to_version)
        keys = self.upsert.settings.keys
        chosen = sql.SQL(", ").join(sql.Identifier("_sf_k", name) for name in keys)
        connection.execute(_RESTORE.format(table=self.upsert.table, keys=chosen, oldest=self._oldest(to_version)))
        self.record(connection, position.version + 1, position.token, _RESTORED)
        names = {"table": self.upsert.table, "restored": _RESTORED, "same_key": same_key(keys)}
        connection.execute(_DELETE_NEW_ROWS.format(**names))
        changed = [name for name in self.upsert.columns if name not in keys]
        if changed:
            pairs = (sql.SQL("{0} = _sf_s.{0}").format(sql.Identifier(name)) for name in changed)
            connection.execute(_UPDATE.format(**names, changes=sql.SQL(", ").join(pairs)))
        written = [column.name for column in relation.columns if not column.is_generated]
        values = sql.SQL(", ").join(sql.Identifier("_sf_s", name) for name in written)
        connection.execute(_INSERT_FORMER_ROWS.format(**names, columns=columns_of(written), values=values))

    def _oldest(self, version: int) -> sql.Composed:
        return _OLDEST.format(undo=self._undo, this_sink=self._this_sink, version=version)

    @property
    def _undo(self) -> sql.Identifier:
        return sql.Identifier(self.upsert.name.schema, UNDO)

    @property
    def _this_sink(self) -> sql.Composed:
        return _THIS_SINK.format(oid=self.oid, application=self.application)

    @property
    def _names(self) -> dict[str, sql.Composable | str | int]:
        return {"undo": self._undo, "table": self.upsert.table, "oid": self.oid, "application": self.application}

    def _too_old(self, **facts: int | None) -> SinkDiverged:
        return SinkDiverged(
            "the table in PostgreSQL cannot be rewound: former rows are not stored since that checkpoint",
            hint="choose a newer checkpoint, or keep the table with --keep-table UID; a longer time for undo=… keeps "
            "more",
            table=self.location,
            **facts,
        )


_TABLE = """
SELECT c.oid::bigint, c.relkind::text, c.relpersistence::text, c.relhasrules, row_security_active(c.oid),
       ARRAY(SELECT p FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) p WHERE has_table_privilege(c.oid, p))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s
"""
_COLUMNS = """
SELECT attname::text, format_type(atttypid, atttypmod), attnotnull, attgenerated <> '', attidentity::text, atthasdef
FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_UNIQUE = """
SELECT ARRAY(SELECT a.attname::text FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, n)
             JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum WHERE k.n <= i.indnkeyatts)
FROM pg_index i
WHERE indrelid = %s AND indisunique AND indimmediate AND indisvalid AND indpred IS NULL AND indexprs IS NULL
"""
_SCHEMA = """
SELECT has_schema_privilege(oid, 'USAGE'), has_schema_privilege(oid, 'CREATE') FROM pg_namespace WHERE nspname = %s
"""


@dataclass(frozen=True)
class TableColumn:
    """A column.

    Attributes:
        type: as ``format_type`` names it.
        identity: ``a`` if its values are always generated, ``d`` by default, empty otherwise.
    """

    name: str
    type: str
    is_required: bool
    is_generated: bool
    identity: str
    has_default: bool

    @property
    def is_insertable(self) -> bool:
        """Whether an insert may give its value."""
        return not self.is_generated and self.identity != "a"

    @property
    def may_be_omitted(self) -> bool:
        """Whether an insert need not give its value."""
        return not self.is_required or self.is_generated or self.has_default or bool(self.identity)


@dataclass(frozen=True)
class PostgresRelation:
    """A table, or something else of its name.

    Attributes:
        oid: its number, which no other one gets.
        kind: ``r`` for a table, ``p`` for a partitioned one.
        persistence: ``p`` if it survives a crash of the server.
        has_rules: whether statements are rewritten.
        hides_rows: whether row security applies to the sink's user.
        privileges: of the sink's user.
        columns: in order.
        unique: the columns of each index that permits upserts.
    """

    oid: int
    kind: str
    persistence: str
    has_rules: bool
    hides_rows: bool
    privileges: frozenset[str]
    columns: tuple[TableColumn, ...]
    unique: frozenset[frozenset[str]]

    def column(self, name: str) -> TableColumn | None:
        """Returns a column; None if there is none of that name."""
        return next((column for column in self.columns if column.name == name), None)


def read_relation(connection: Connection, name: TableName) -> PostgresRelation | None:
    """Returns what a name refers to; None for nothing."""
    found = connection.execute(_TABLE, (name.schema, name.table)).fetchone()
    if found is None:
        return None
    oid, kind, persistence, has_rules, hides_rows, privileges = found
    columns = connection.execute(_COLUMNS, (oid,)).fetchall()
    unique = connection.execute(_UNIQUE, (oid,)).fetchall()
    return PostgresRelation(
        oid=oid,
        kind=kind,
        persistence=persistence,
        has_rules=has_rules,
        hides_rows=hides_rows,
        privileges=frozenset(privileges),
        columns=tuple(TableColumn(*column) for column in columns),
        unique=frozenset(frozenset(names) for (names,) in unique),
    )


def schema_privileges(connection: Connection, schema: str) -> tuple[bool, bool] | None:
    """Returns whether the sink's user may use a schema, and create tables there; None if it does not exist."""
    found = connection.execute(_SCHEMA, (schema,)).fetchone()
    return None if found is None else (found[0], found[1])
