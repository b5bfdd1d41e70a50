"""Tables in PostgreSQL, and sinks that write to them, as the tests of the sink share them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from stateflow.api.sink import SinkContext, Writing
from stateflow.clock import SystemClock
from stateflow.connectors.postgres.sink import PostgresSink
from stateflow.state.handles import Committable
from stateflow.storage import open_storage
from tests.servers.postgres import Postgres
from tests.support import delta_tables

_numbers = itertools.count(1)


@dataclass(frozen=True)
class PostgresTable:
    """A table, its sink, and the storage of a job root.

    Attributes:
        name: with its schema.
    """

    server: Postgres
    name: str
    sink: PostgresSink
    about: SinkContext

    @classmethod
    def create(
        cls, server: Postgres, folder: Path, row_class: type[Any], ddl: str = "", **settings: Any
    ) -> PostgresTable:
        """A table with a name of its own, which does not exist, or has been created by `ddl` without its name."""
        name = f"public.t{next(_numbers)}"
        if ddl:
            server.execute(ddl.format(table=name))
        sink = PostgresSink(server.conninfo, name, password=server.password, **settings)
        about = replace(delta_tables.context(row_class), storage=open_storage(str(folder / "root")))
        return cls(server, name, sink, about)

    def prepare(self) -> PostgresTable:
        """Creates the table, or checks it."""
        self.sink.prepare(self.about)
        return self

    def stage(self, ordinal: int, *parts: Iterable[msgspec.Struct]) -> list[Committable]:
        """The rows that subtasks stage for a checkpoint."""
        files: list[Committable] = []
        for subtask, rows in enumerate(parts):
            writing = Writing(1, ordinal, subtask, SystemClock().new_id())
            files += delta_tables.write(self.sink, self.about, rows, writing)
        return files

    def put(self, token: int, *parts: Iterable[msgspec.Struct]) -> None:
        """Stages and publishes a checkpoint."""
        assert self.sink.open_table(self.about).commit(token, self.stage(token, *parts)) is not None

    @property
    def token(self) -> int | None:
        return self.sink.open_table(self.about).token

    def rows(self, *order: str) -> list[dict[str, Any]]:
        """The rows, as another client sees them."""
        found = self.server.rows(self.name)
        return sorted(found, key=lambda row: [row[name] for name in order])

    def ids(self, column: str = "id") -> Sequence[Any]:
        return sorted(row[column] for row in self.server.rows(self.name))
