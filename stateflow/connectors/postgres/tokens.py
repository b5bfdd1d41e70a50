"""The token of each sink, in a table next to the one that it writes to; it identifies the table, too."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import sql

from stateflow.connectors.postgres.connection import Connection
from stateflow.connectors.postgres.settings import TOKENS, UNDO, PostgresSettings
from stateflow.errors import SinkRefused

_TAKEN_OVER = "#taken-over"
"""Ends the name in the row of an application that must no longer write; the row has its successor as id."""
_IDENTITY = ""
"""In place of an application: the row that has the id of the table."""
_COLUMNS = {
    TOKENS: (
        "table_oid bigint NOT NULL",
        "application text NOT NULL",
        "table_id text NOT NULL",
        "token bigint NOT NULL",
        "version bigint NOT NULL",
    ),
    UNDO: (
        "table_oid bigint NOT NULL",
        "application text NOT NULL",
        "version bigint NOT NULL",
        "token bigint NOT NULL",
        "at timestamp with time zone NOT NULL",
        "key jsonb",
        "former jsonb",
    ),
}
"""The columns of the sink's own tables, as PostgreSQL names their types."""
_CREATE = sql.SQL("CREATE TABLE IF NOT EXISTS {table} ({columns}{constraint})")
_PRIMARY_KEY = sql.SQL(", PRIMARY KEY (table_oid, application)")
# Whatever runs code or hides rows when the sink uses the table, if another role has made it: the code would have the
# rights of the sink. A trusted owner is the only one who can add such a thing later.
_FOUND = """
SELECT c.relname::text,
       ARRAY(SELECT concat(attname, ' ', format_type(atttypid, atttypmod), CASE WHEN attnotnull THEN ' NOT NULL' END)
             FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped ORDER BY attnum),
       pg_get_userbyid(c.relowner)::text,
       array_remove(ARRAY[
           CASE WHEN c.relkind <> 'r' OR c.relpersistence <> 'p' THEN 'no permanent table' END,
           CASE WHEN NOT (c.relowner = me.oid OR o.rolsuper OR (NOT me.rolsuper AND pg_has_role(c.relowner, 'MEMBER'))
                          OR c.relowner IN (SELECT relowner FROM pg_class WHERE oid = %(oid)s)) THEN 'owner' END,
           CASE WHEN EXISTS (SELECT FROM pg_trigger WHERE tgrelid = c.oid) THEN 'trigger' END,
           CASE WHEN EXISTS (SELECT FROM pg_rewrite WHERE ev_class = c.oid) THEN 'rule' END,
           CASE WHEN c.relrowsecurity OR EXISTS (SELECT FROM pg_policy WHERE polrelid = c.oid) THEN 'row security' END,
           CASE WHEN EXISTS (SELECT FROM pg_inherits WHERE c.oid IN (inhrelid, inhparent)) THEN 'inheritance' END,
           CASE WHEN EXISTS (SELECT FROM pg_attrdef WHERE adrelid = c.oid) THEN 'default' END,
           CASE WHEN EXISTS (SELECT FROM pg_attribute WHERE attrelid = c.oid AND attidentity <> '') THEN 'identity' END,
           CASE WHEN EXISTS (SELECT FROM pg_constraint WHERE conrelid = c.oid AND contype NOT IN ('p', 'n'))
                THEN 'constraint' END,
           CASE WHEN EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid AND num_nulls(indexprs, indpred) < 2)
                THEN 'index' END
       ], NULL)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_roles o ON o.oid = c.relowner
JOIN pg_roles me ON me.rolname = current_user
WHERE n.nspname = %(schema)s AND c.relname = ANY(%(names)s)
"""
_INDEX_UNDO = sql.SQL(
    """
CREATE INDEX IF NOT EXISTS {index} ON {undo} (table_oid, application, version)
"""
)
_INSERT = sql.SQL(
    "INSERT INTO {tokens} VALUES ({oid}, {application}, {table_id}, 0, 0) ON CONFLICT (table_oid, application) "
    "DO NOTHING"
)
_SELECT = sql.SQL("SELECT table_id, token, version FROM {tokens} WHERE table_oid = {oid} AND application = {name}")
_END = sql.SQL(
    "INSERT INTO {tokens} VALUES ({oid}, {application}, {successor}, 0, 0) ON CONFLICT (table_oid, application) "
    "DO UPDATE SET table_id = excluded.table_id"
)
_UPDATE = sql.SQL(
    "UPDATE {tokens} SET token = {token}, version = {version} WHERE table_oid = {oid} AND application = {name}"
)
_OTHERS = sql.SQL(
    "SELECT DISTINCT split_part(application, '/', 1) FROM {tokens} "
    "t WHERE table_oid = {oid} AND token > 0 AND substr(application, strpos(application, '/') + 1) = {uid} "
    "AND NOT EXISTS (SELECT FROM {tokens} u WHERE u.table_oid = {oid} AND u.application = t.application || {ended})"
)


@dataclass(frozen=True)
class Position:
    """What the token table has of a sink.

    Attributes:
        table_id: id of the table; empty if no sink has prepared it.
        token: the last published checkpoint.
        version: how often the sink has published or rewound.
        successor: the sink that has taken over the table; empty if none has.
        others: before the sink's first publication, the jobs whose sink of the same uid has published.
    """

    table_id: str
    token: int
    version: int
    successor: str = ""
    others: frozenset[str] = frozenset()


@dataclass(frozen=True)
class TokenTable:
    """The tokens of one table.

    Args:
        schema: of the table.
        oid: of the table.
    """

    schema: str
    oid: int

    @property
    def _name(self) -> sql.Identifier:
        return sql.Identifier(self.schema, TOKENS)

    def read(self, connection: Connection, application: str, lock: bool = False) -> Position:
        """Returns the position of an application.

        Args:
            lock: let no other transaction change it before the end of this one.
        """
        identity = self._row(connection, _IDENTITY, lock=False)
        found = self._row(connection, application, lock)
        # After the lock, which the transaction of a successor holds.
        successor = self._row(connection, application + _TAKEN_OVER, lock=False)
        others = frozenset() if found.token else self.other_jobs(connection, application.partition("/")[2])
        return Position(identity.table_id, found.token, found.version, successor.table_id, others)

    def _row(self, connection: Connection, application: str, lock: bool) -> Position:
        query = _SELECT.format(tokens=self._name, oid=self.oid, name=application)
        row = connection.execute(query + sql.SQL(" FOR UPDATE") if lock else query).fetchone()
        return Position(*row) if row else Position("", 0, 0)

    def insert(self, connection: Connection, application: str, table_id: str) -> None:
        """Creates the row of an application, unless it exists."""
        connection.execute(_INSERT.format(tokens=self._name, oid=self.oid, application=application, table_id=table_id))

    def identify(self, connection: Connection, table_id: str) -> None:
        """Gives the table its id, unless it has one."""
        self.insert(connection, _IDENTITY, table_id)

    def lock_first(self, connection: Connection) -> None:
        """Lets no other application publish for the first time before the end of this transaction."""
        self._row(connection, _IDENTITY, lock=True)

    def set(self, connection: Connection, application: str, token: int, version: int) -> None:
        """Sets the token of an application."""
        query = _UPDATE.format(tokens=self._name, oid=self.oid, name=application, token=token, version=version)
        connection.execute(query)

    def end(self, connection: Connection, application: str, successor: str) -> None:
        """Records that another application has taken over the table from one whose row is locked."""
        name = application + _TAKEN_OVER
        # The newest successor, which may have taken over from the one before as well.
        query = _END.format(tokens=self._name, oid=self.oid, application=name, successor=successor)
        connection.execute(query)

    def other_jobs(self, connection: Connection, uid: str) -> frozenset[str]:
        """Returns the ids of jobs whose sink of that uid has published, and still may."""
        query = _OTHERS.format(tokens=self._name, oid=self.oid, uid=uid, ended=_TAKEN_OVER)
        return frozenset(job for (job,) in connection.execute(query))


def create_own_tables(connection: Connection, schema: str, with_undo: bool) -> None:
    """Creates the tables that the sink needs in a schema, unless they exist."""
    for name in (TOKENS, UNDO) if with_undo else (TOKENS,):
        # Not identifiers: the columns come from this module.
        columns = sql.SQL(", ".join(_COLUMNS[name]))
        constraint = _PRIMARY_KEY if name == TOKENS else sql.SQL("")
        table = sql.Identifier(schema, name)
        connection.execute(_CREATE.format(table=table, columns=columns, constraint=constraint))
    if with_undo:
        names = {"index": sql.Identifier(f"{UNDO}_version"), "undo": sql.Identifier(schema, UNDO)}
        connection.execute(_INDEX_UNDO.format(**names))


def own_tables_exist(connection: Connection, settings: PostgresSettings, oid: int | None, with_undo: bool) -> bool:
    """Returns whether the tables that the sink needs exist; to be called in each transaction that uses them.

    Args:
        oid: of the sink's table, whose owner may own them; None for no such table.
        with_undo: whether the table of former rows is needed.

    Raises:
        SinkRefused: a table of such a name is not as the sink creates it, or belongs to a role that the sink's role is
            not a member of.
    """
    names = [TOKENS, UNDO] if with_undo else [TOKENS]
    parameters = {"schema": settings.name.schema, "names": names, "oid": oid}
    found = connection.execute(_FOUND, parameters).fetchall()
    for name, columns, owner, differences in found:
        if differences or tuple(columns) != _COLUMNS[name]:
            raise SinkRefused(
                "a table of a PostgreSQL sink is not as the sink creates it, and may run another role's code",
                hint=f"look at it, and drop it if you do not know it; let the sink's role create and own {name}",
                table=settings.location,
                found=f"{settings.name.schema}.{name}",
                owner=owner,
                properties=differences or ["columns"],
            )
    return len(found) == len(names)
