"""A job whose tables are Iceberg's, and what they must have."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyiceberg.table import Table

from tests.support import iceberg_tables, root_files
from tests.support.job_fixture import AccountsJob, Row


@dataclass
class IcebergJob(AccountsJob):
    job_name: str = "accounts_in_iceberg"

    @classmethod
    def create(cls, folder: Path) -> IcebergJob:
        iceberg_tables.create_catalog(folder / "lake")
        return cls(folder=folder / "job", settings={"job__lake": str(folder / "lake")})

    def iceberg_table(self, name: str) -> Table:
        lake = Path(str(self.settings["job__lake"]))
        return iceberg_tables.catalog_in(lake).load_table(f"db.{name}")

    def rows(self, table: str) -> list[Row]:
        return iceberg_tables.rows(self.iceberg_table(table))

    def check_clean(self) -> None:
        self.collect()
        root_files.check_no_orphans(self.root)
