"""A job whose tables are Delta's, or folders of files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.support import delta_tables, file_tables
from tests.support.job_fixture import AccountsJob, Row


@dataclass
class FoldersJob(AccountsJob):
    job_name: str = "accounts_in_folders"

    @classmethod
    def create(cls, folder: Path, sink: str) -> FoldersJob:
        """A job without tables yet; `sink` is ``delta`` or ``files``."""
        return cls(folder, {"job__sink": sink})

    @property
    def upserts_totals(self) -> bool:
        return self.settings["job__sink"] == "delta"

    def rows(self, table: str) -> list[Row]:
        read = delta_tables.rows if self.settings["job__sink"] == "delta" else file_tables.rows
        return read(self.table(table))
