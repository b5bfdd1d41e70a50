"""The PostgreSQL sink: the rows of a checkpoint and its token become visible in one transaction.

Tasks stage rows in the job root. After the COMMIT of the checkpoint, the driver locks the sink's row in the table of
tokens, compares it with what it read before, and writes rows and token in the same transaction. So no two runs publish
a checkpoint twice, and an old driver that wakes up changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Literal

import pyarrow as pa

from stateflow.api.changelog import Changelog
from stateflow.api.datasets import Dataset
from stateflow.api.schema import RowSchema
from stateflow.api.sink import Sink, SinkContext, SinkTable, SinkWriter, Writing
from stateflow.connectors.postgres.target import PostgresSettings, TableName, first_unstorable, split_conninfo
from stateflow.connectors.staged_output import StagedSink, StagedWriter
from stateflow.connectors.upserts import UpsertSettings, names_of
from stateflow.errors import JobDefinitionError, SchemaMismatch
from stateflow.helpers import check_choice

Mode = Literal["append", "upsert"]
_APPEND: Mode = "append"
_UPSERT: Mode = "upsert"
_TIMEOUT = timedelta(minutes=10)


class PostgresSink(StagedSink):
    """Appends a stream's rows to a table in PostgreSQL, or upserts them by key, exactly once.

    The sink creates a missing table, for upserts with a primary key. An existing table must have these columns, in any
    order; where its types are narrower, such as integer, real, varchar(10) or NOT NULL, a row with another value ends
    the batch. Further columns must be nullable or have a default. The sink keeps its position in a table
    ``stateflow_tokens`` of the same schema, which its role must own. Statements run with ``search_path = pg_catalog,
    pg_temp``: triggers of the table must name schemas.

    Args:
        conninfo: a connection string such as ``host=db dbname=flights user=etl``, or a ``postgresql://`` URL, with any
            option of libpq. The environment (``PGPASSWORD``, ``PGPASSFILE``, …) has what it lacks.
        table: ``table`` or ``schema.table``, exactly as PostgreSQL stores the names; the schema must exist.
        mode: ``"append"``, or ``"upsert"``: each row replaces the row of its key, all rows of a checkpoint at once. The
            table needs a unique index on exactly these keys; the driver holds the rows of a checkpoint in memory.
        keys: for upserts, the columns that identify a row.
        order_by: for upserts, columns by which the last row of a key in a checkpoint wins; without them, the row that
            was emitted last, if one subtask emits all rows of a key.
        deletes: for upserts, a bool column that is true in rows that delete their key; the table does not have it.
        undo: for upserts, how long the sink stores the rows that it replaces and deletes, in a table
            ``stateflow_undo``. A restore can put the table back to checkpoints of that time; without it, a restore of
            the table is refused in the plan. Other writers of the table wait while a checkpoint is published.
        password: of the user, as in ``password=os.environ["DB_PASSWORD"]``. It is not sent to tasks, and no `repr`,
            log, plan or stored file contains it.
        timeout: the longest time of the transaction that publishes a checkpoint.

    Raises:
        JobDefinitionError: an argument is malformed, or arguments of an upsert are missing, or given for an append.
        EnvironmentUnsupported: psycopg is not installed; only the driver needs it.
    """

    def __init__(
        self,
        conninfo: str,
        table: str,
        *,
        mode: Mode = "append",
        keys: str | Sequence[str] = (),
        order_by: str | Sequence[str] = (),
        deletes: str = "",
        undo: timedelta | None = None,
        password: str = "",
        timeout: timedelta = _TIMEOUT,
    ) -> None:
        check_choice("mode", mode, (_APPEND, _UPSERT))
        upsert = UpsertSettings(names_of(keys), names_of(order_by), deletes)
        is_plain = upsert == UpsertSettings(()) and undo is None
        if (mode == _UPSERT) != bool(upsert.keys) or (mode == _APPEND and not is_plain):
            raise JobDefinitionError(
                "the arguments of a PostgreSQL sink do not match its mode",
                hint='keys, order_by, deletes and undo belong to mode="upsert", which needs keys',
                mode=mode,
                keys=list(upsert.keys),
            )
        _check_positive(undo=undo, timeout=timeout)
        name = TableName.parse(table)
        text, secret, address = split_conninfo(conninfo, password)
        self._settings = PostgresSettings(
            name=name,
            location=f"{address}/{name}",
            upsert=upsert if mode == _UPSERT else None,
            undo=undo,
            timeout=timeout,
            conninfo=text,
            password=secret,
        )
        self._target: pa.Schema | None = None

    def __repr__(self) -> str:
        return f"PostgresSink({self.location!r})"

    def __deepcopy__(self, memo: object) -> PostgresSink:
        # Stays in this process.
        return self._with(self._settings, self._target)

    def __getstate__(self) -> tuple[PostgresSettings, pa.Schema | None]:
        # For tasks, in other processes.
        return self._settings.for_tasks(), self._target

    def __setstate__(self, state: tuple[PostgresSettings, pa.Schema | None]) -> None:
        self._settings, self._target = state

    @property
    def location(self) -> str:
        return self._settings.location

    def datasets(self) -> Sequence[Dataset]:
        return (self._settings.dataset,)

    def check(self, context: SinkContext) -> str | None:
        from stateflow.connectors.postgres.table import check_table, target_schema

        relation, table_id = check_table(self._settings, self._schema(context))
        self._target = target_schema(relation, context.schema) if relation else None
        return table_id

    @property
    def ordering_key(self) -> tuple[str, ...]:
        return self._settings.upsert.ordering_key if self._settings.upsert else ()

    @property
    def required_columns(self) -> tuple[str, ...]:
        return self._settings.upsert.keys if self._settings.upsert else ()

    def for_changelog(self, changelog: Changelog) -> Sink:
        if self._settings.upsert is None:
            return super().for_changelog(changelog)
        return self._with(replace(self._settings, upsert=self._settings.upsert.for_changelog(changelog)))

    def other_jobs(self, context: SinkContext) -> frozenset[str]:
        from stateflow.connectors.postgres.table import other_jobs

        return other_jobs(self._settings, context.uid) - {context.job_uuid}

    def prepare(self, context: SinkContext) -> str:
        from stateflow.connectors.postgres.table import prepare_table

        self.check(context)
        return prepare_table(self._settings, self._schema(context), context.application)

    def writer(self, context: SinkContext, writing: Writing) -> SinkWriter:
        return _Writer(context, writing, self._target)

    def open_table(self, context: SinkContext) -> SinkTable:
        from stateflow.connectors.postgres.table import PostgresTable, open_relation, target_schema

        relation, position = open_relation(self._settings, self._schema(context), context.application)
        self._target = target_schema(relation, context.schema)
        return PostgresTable(self._settings, context, relation, position)

    def shadow(self) -> PostgresSink:
        return self._with(self._settings.shadow())

    def _with(self, settings: PostgresSettings, target: pa.Schema | None = None) -> PostgresSink:
        sink = PostgresSink.__new__(PostgresSink)
        sink.__setstate__((settings, target))
        return sink

    def _schema(self, context: SinkContext) -> RowSchema:
        """Returns the columns of the table. Raises JobDefinitionError if the rows cannot be upserted."""
        if self._settings.upsert is None:
            return context.schema
        self._settings.upsert.check(context.schema)
        return self._settings.upsert.table_schema(context.schema)


class _Writer(StagedWriter):
    """Refuses what PostgreSQL cannot store before the checkpoint, after which no error could be corrected."""

    def write(self, rows: pa.RecordBatch) -> None:
        column = first_unstorable(rows)
        if column is not None:
            raise SchemaMismatch(
                "a text has the character U+0000, which a table in PostgreSQL cannot store",
                hint="remove the character before the sink, or declare the column as bytes",
                column=column,
            )
        super().write(rows)


def _check_positive(**durations: timedelta | None) -> None:
    for name, duration in durations.items():
        if duration is not None and duration <= timedelta(0):
            raise JobDefinitionError(f"the value of {name} must be positive", given=str(duration))
