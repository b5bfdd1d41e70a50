"""Tables in PostgreSQL, and sinks that write to them, as the tests of the sink share them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stateflow.connectors.postgres.sink import PostgresSink
from stateflow.storage import open_storage
from tests.servers.postgres import Postgres
from tests.support import delta_tables
from tests.support.staged_tables import StagedSinkTable

_numbers = itertools.count(1)


@dataclass(frozen=True)
class PostgresTable(StagedSinkTable[PostgresSink]):
    server: Postgres

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
        return cls(name, sink, about, server)

    def rows(self, *order: str) -> list[dict[str, Any]]:
        found = self.server.rows(self.name)
        return sorted(found, key=lambda row: [row[name] for name in order])

    def ids(self, column: str = "id") -> Sequence[Any]:
        return sorted(row[column] for row in self.server.rows(self.name))
