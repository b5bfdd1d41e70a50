"""A job and its sink: rows are staged in the job root and published to a table of SQLite, for runs without Spark."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec

from stateflow import Context, KeyedProcessFunction, StreamExecutionEnvironment
from stateflow.api.sink import SinkContext, SinkRewind, SinkTable, TableChanges
from stateflow.connectors.staged_output import StagedSink, StagedTable
from stateflow.errors import SinkRefused
from stateflow.state.handles import Committable
from stateflow.testing.sources import ScriptedSource

_TABLES = """
CREATE TABLE IF NOT EXISTS published (number INTEGER, account TEXT);
CREATE TABLE IF NOT EXISTS tokens (application TEXT PRIMARY KEY, token INTEGER);
"""


class Event(msgspec.Struct):
    number: int
    account: str


class SqliteSink(StagedSink):
    """Appends rows to a table of SQLite, in one transaction for each checkpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def check(self, context: SinkContext) -> str | None:
        return str(self.path) if self.path.exists() else None

    def prepare(self, context: SinkContext) -> str:
        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            connection.executescript(_TABLES)
        return str(self.path)

    def open_table(self, context: SinkContext) -> SinkTable:
        return SqliteTable(self.path, context)

    def shadow(self) -> SqliteSink:
        return SqliteSink(self.path.with_suffix(".shadow"))

    def rows(self) -> list[tuple[int, str]]:
        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            return connection.execute("SELECT number, account FROM published").fetchall()


class SqliteTable(StagedTable):
    def __init__(self, path: Path, context: SinkContext) -> None:
        super().__init__(context)
        self._path = path
        self.table_id = str(path)
        with contextlib.closing(sqlite3.connect(path)) as connection:
            self.version = self._stored(connection)
        self.token = self.version

    def commit(self, token: int, committables: list[Committable]) -> int | None:
        with contextlib.closing(sqlite3.connect(self._path, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            if self._stored(connection) != self.token:
                return None
            for rows in self.staged_rows(committables):
                connection.executemany("INSERT INTO published VALUES (:number, :account)", rows.to_pylist())
            connection.execute("INSERT OR REPLACE INTO tokens VALUES (?, ?)", (self.context.application, token))
            connection.execute("COMMIT")
        return token

    def plan_rewind(self, checkpoint_id: int) -> SinkRewind:
        if self.version > checkpoint_id:
            raise SinkRefused("rows cannot be retracted")
        return SinkRewind(self.version, None, 0, 0, ())

    def changes_since(self, version: int) -> TableChanges:
        return TableChanges(str(self._path), self.version > version, ())

    def rewind(self, to_version: int | None, token: int) -> int | None:
        return self.commit(token, []) if to_version is None else None

    def _stored(self, connection: sqlite3.Connection) -> int:
        found = connection.execute("SELECT token FROM tokens WHERE application = ?", (self.context.application,))
        return next(found, (0,))[0]


class PassOn(KeyedProcessFunction[Event, Event]):
    def process_element(self, row: Event, ctx: Context) -> Iterator[Event]:
        yield row


def scripted_events(folder: Path) -> ScriptedSource:
    """The source of the events in a file of a folder."""
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    script = [Event(line["number"], line["account"]) for line in lines]
    return ScriptedSource(Event, script, folder / "ledger.jsonl", slice_rows=10)


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job; ``job.folder`` holds the events and the table."""
    folder = Path(env.parameter("folder"))
    events = env.from_source(scripted_events(folder), uid="events")
    passed = events.key_by("account").process(PassOn(), output=Event, uid="accounts")
    passed.sink_to(SqliteSink(folder / "table.db"), uid="table")
