"""Tables whose sinks stage rows in a job root, in Iceberg and PostgreSQL, and what tests do with them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import msgspec
import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table

from stateflow.api.sink import SinkContext, Writing
from stateflow.clock import SystemClock
from stateflow.connectors.iceberg.sink import IcebergSink
from stateflow.connectors.postgres.sink import PostgresSink
from stateflow.connectors.staged_output import StagedSink
from stateflow.state.handles import Committable
from stateflow.storage import open_storage
from tests.servers.postgres import Postgres
from tests.support import delta_tables

S = TypeVar("S", bound=StagedSink)


@dataclass(frozen=True)
class StagedSinkTable(Generic[S]):
    """A table, its sink, and the storage of a job root. `name`: with its namespace or schema."""

    name: str
    sink: S
    about: SinkContext

    def prepare(self) -> Self:
        self.sink.prepare(self.about)
        return self

    def stage(self, ordinal: int, *parts: Iterable[msgspec.Struct]) -> list[Committable]:
        files: list[Committable] = []
        for subtask, part in enumerate(parts):
            writing = Writing(1, ordinal, subtask, SystemClock().new_id())
            files += delta_tables.write(self.sink, self.about, part, writing)
        return files

    def put(self, token: int, *parts: Iterable[msgspec.Struct]) -> None:
        assert self.sink.open_table(self.about).commit(token, self.stage(token, *parts)) is not None

    @property
    def token(self) -> int | None:
        return self.sink.open_table(self.about).token


NAMESPACE = "db"


def iceberg_properties(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}


def create_catalog(folder: Path) -> Catalog:
    folder.mkdir(parents=True)
    catalog = catalog_in(folder)
    catalog.create_namespace(NAMESPACE)
    return catalog


def catalog_in(folder: Path) -> Catalog:
    return load_catalog("tests", **iceberg_properties(folder))


def iceberg_rows(table: Table) -> list[dict[str, Any]]:
    """Returns the rows of a table's current snapshot, in any order."""
    found: list[dict[str, Any]] = table.scan().to_arrow().to_pylist()
    return found


def expire_all_but_current(table: Table) -> None:
    head = table.current_snapshot()
    assert head is not None
    old = [s.snapshot_id for s in table.snapshots() if s.snapshot_id != head.snapshot_id]
    table.maintenance.expire_snapshots().by_ids(old).commit()


@dataclass(frozen=True)
class IcebergTable(StagedSinkTable[IcebergSink]):
    """A table in a catalog. `folder`: has the catalog, the warehouse and the job root."""

    folder: Path

    @classmethod
    def create(cls, folder: Path, row_class: type[Any], **settings: Any) -> IcebergTable:
        """A table that does not exist, in a catalog of its own."""
        create_catalog(folder / "lake")
        return cls.existing(folder, row_class, **settings)

    @classmethod
    def existing(cls, folder: Path, row_class: type[Any], **settings: Any) -> IcebergTable:
        name = f"{NAMESPACE}.t"
        sink = IcebergSink(name, catalog="tests", properties=iceberg_properties(folder / "lake"), **settings)
        about = replace(delta_tables.context(row_class), storage=open_storage(str(folder / "root")))
        return cls(name, sink, about, folder)

    def of(self, row_class: type[Any], uid: str = "out", **settings: Any) -> IcebergTable:
        """The same table, as a sink with other rows or settings writes it."""
        sink = IcebergSink(self.name, catalog="tests", properties=iceberg_properties(self.folder / "lake"), **settings)
        about = replace(delta_tables.context(row_class, uid), storage=self.about.storage)
        return replace(self, sink=sink, about=about)

    @property
    def table(self) -> Table:
        return catalog_in(self.folder / "lake").load_table(self.name)

    def rows(self) -> list[dict[str, Any]]:
        """The rows, as another client reads them, ordered by id."""
        return sorted(iceberg_rows(self.table), key=lambda row: row["id"])

    def ids(self) -> list[int]:
        return [row["id"] for row in self.rows()]

    def append(self, first: int, count: int = 1) -> None:
        ids = range(first, first + count)
        columns = {"id": pa.array(ids, pa.int64()), "text": pa.array([f"row {i}" for i in ids], pa.string())}
        self.table.append(pa.table(columns))

    def data_files(self) -> set[str]:
        return {path.name for path in (self.folder / "lake").rglob("*.parquet")}

    def table_exists(self) -> bool:
        return catalog_in(self.folder / "lake").table_exists(self.name)


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
