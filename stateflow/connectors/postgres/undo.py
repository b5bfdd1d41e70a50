"""Former rows of changed keys, which a rewind restores.

In each transaction that changes the table, the sink stores the former row of each key that it changes, or that there
was none, and one row without a key for the version itself. To restore a version, the oldest former row of each key
after it is put back. A rewind is a version as well, whose former rows are stored, so later rewinds can pass it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from psycopg import sql

from stateflow.api.sink import SinkRewind
from stateflow.connectors.postgres.catalog import Relation
from stateflow.connectors.postgres.connection import Connection
from stateflow.connectors.postgres.settings import UNDO
from stateflow.connectors.postgres.statements import STAGED, Upsert, columns_of, same_key
from stateflow.connectors.postgres.tokens import Position
from stateflow.errors import SinkDiverged

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
_DELETE = sql.SQL("DELETE FROM {table} _sf_t USING {restored} _sf_s WHERE {same_key} AND _sf_s._sf_former IS NULL")
_UPDATE = sql.SQL(
    "UPDATE {table} _sf_t SET {changes} FROM {restored} _sf_r CROSS JOIN LATERAL "
    "jsonb_populate_record(NULL::{table}, _sf_r._sf_former) _sf_s WHERE _sf_r._sf_former IS NOT NULL AND {same_key}"
)
_INSERT = sql.SQL(
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

    upsert: Upsert
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

    def plan(self, connection: Connection, position: Position, checkpoint_id: int) -> SinkRewind:
        """Returns the effect of a rewind. Raises SinkDiverged if some of the former rows are no longer stored."""
        query = _FIRST.format(undo=self._undo, token=checkpoint_id, this_sink=self._this_sink)
        row = connection.execute(query).fetchone()
        assert row is not None
        first, later, oldest, earlier = row
        # The version before the first later one must be the one that the checkpoint saw.
        if not later or position.version - later != first - 1 or not (earlier or oldest == 1):
            raise self._too_old(checkpoint=checkpoint_id, oldest=oldest)
        effect = _EFFECT.format(
            **self._names,
            oldest=self._oldest(first - 1),
            first=sql.Identifier(self.upsert.settings.keys[0]),
            same_key=same_key(self.upsert.settings.keys),
        )
        found = connection.execute(effect).fetchone()
        assert found is not None
        return SinkRewind(position.version, first - 1, found[0], found[1], ())

    def restore(self, connection: Connection, relation: Relation, to_version: int, position: Position) -> None:
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
        connection.execute(_DELETE.format(**names))
        changed = [name for name in self.upsert.columns if name not in keys]
        if changed:
            pairs = (sql.SQL("{0} = _sf_s.{0}").format(sql.Identifier(name)) for name in changed)
            connection.execute(_UPDATE.format(**names, changes=sql.SQL(", ").join(pairs)))
        written = [column.name for column in relation.columns if not column.is_generated]
        values = sql.SQL(", ").join(sql.Identifier("_sf_s", name) for name in written)
        connection.execute(_INSERT.format(**names, columns=columns_of(written), values=values))

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
