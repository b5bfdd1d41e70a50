"""Iceberg tables of tests: a catalog in SQLite, sinks that write to its tables, and what another reader finds there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table

from stateflow.connectors.iceberg.sink import IcebergSink
from stateflow.storage import open_storage
from tests.support import delta_tables
from tests.support.staged_tables import StagedSinkTable

NAMESPACE = "db"


def properties(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}


def create_catalog(folder: Path) -> Catalog:
    folder.mkdir(parents=True)
    catalog = catalog_in(folder)
    catalog.create_namespace(NAMESPACE)
    return catalog


def catalog_in(folder: Path) -> Catalog:
    return load_catalog("tests", **properties(folder))


def rows(table: Table) -> list[dict[str, Any]]:
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
    """A table in a catalog.

    Attributes:
        folder: has the catalog, the warehouse and the job root.
    """

    folder: Path

    @classmethod
    def create(cls, folder: Path, row_class: type[Any], **settings: Any) -> IcebergTable:
        """A table that does not exist, in a catalog of its own."""
        create_catalog(folder / "lake")
        return cls.existing(folder, row_class, **settings)

    @classmethod
    def existing(cls, folder: Path, row_class: type[Any], **settings: Any) -> IcebergTable:
        name = f"{NAMESPACE}.t"
        sink = IcebergSink(name, catalog="tests", properties=properties(folder / "lake"), **settings)
        about = replace(delta_tables.context(row_class), storage=open_storage(str(folder / "root")))
        return cls(name, sink, about, folder)

    def of(self, row_class: type[Any], uid: str = "out", **settings: Any) -> IcebergTable:
        """The same table, as a sink with other rows or settings writes it."""
        sink = IcebergSink(self.name, catalog="tests", properties=properties(self.folder / "lake"), **settings)
        about = replace(delta_tables.context(row_class, uid), storage=self.about.storage)
        return replace(self, sink=sink, about=about)

    @property
    def table(self) -> Table:
        return catalog_in(self.folder / "lake").load_table(self.name)

    def rows(self) -> list[dict[str, Any]]:
        """The rows, as another client reads them, ordered by id."""
        return sorted(rows(self.table), key=lambda row: row["id"])

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
