"""A job on Spark that waits for more input, and the folder that it reads."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from tests.spark.jobs import continuous
from tests.spark.processes import ModuleJob
from tests.support.processes import Running, wait_for


class ContinuousJob(ModuleJob):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, continuous, run__until="stopped", requests__interval="100ms", job__delay=1000)
        (folder / "in").mkdir()
        self._files = 0

    def add(self, *names: str) -> None:
        self._files += 1
        new = self.folder / f"{self._files}.tmp"
        new.write_text("".join(json.dumps({"name": name, "number": 0}) + "\n" for name in names))
        new.rename(self.folder / "in" / f"{self._files}.json")

    def wait_for_rows(self, run: Running, *rows: tuple[str, int]) -> None:
        """Waits until the table has these rows, and then no others."""

        def arrived() -> bool:
            assert run.poll() is None, str(run)
            return (self.folder / "out" / "versions").is_dir() and self.rows("out") >= Counter(rows)

        wait_for(arrived, lambda: f"{rows} in {self.rows('out')}: {run.errors}")
        assert self.rows("out") == Counter(rows)
