"""The job of `tests.spark.jobs.partitioned`, with Spark or without it, and what its tables must have."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from tests.spark.jobs import partitioned as job_module
from tests.spark.processes import ModuleJob
from tests.support import folder_tables
from tests.support.ledgers import entry, write


class LedgerJob(ModuleJob):
    def __init__(self, folder: Path, **settings: object) -> None:
        self.sent: list[dict[str, Any]] = []
        super().__init__(folder, job_module, parallelism=2, **settings)  # type: ignore[arg-type]

    def send(self, partition: str, count: int, at: int = 0) -> None:
        entries = [entry(f"n{n % 3}", n, at=at + n) for n in range(len(self.sent), len(self.sent) + count)]
        write(self.folder / "in", partition, *entries)
        self.sent += entries

    def table_rows(self, name: str) -> list[dict[str, Any]]:
        return folder_tables.rows(self.folder / name)

    def check_rows(self) -> None:
        assert sorted(self.table_rows("entries"), key=lambda row: row["number"]) == self.sent
        totals = Counter(row["account"] for row in self.sent)
        counts = Counter((row["account"], row["count"]) for row in self.table_rows("counts") if row["count"] > 0)
        assert counts == Counter((name, n) for name, total in totals.items() for n in range(1, total + 1))
