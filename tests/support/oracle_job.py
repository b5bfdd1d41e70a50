"""Jobs over rows that a seed decides, whose tables plain Python computes from all rows."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.job_fixture import JobFixture, Row

Tables = Mapping[str, Counter[Any]]
"""The rows of tables by name, with how often each is stored."""


class OracleJob(JobFixture, ABC):
    """A job with its script of rows, and what its tables must have.

    Attributes:
        seed: decides the rows.
        delivered: length of the script.
        complete: the tables that have every result after each run. In the others, results wait for the watermark, and
            only the end of the input emits the last ones.
    """

    seed: int
    delivered: int = 0
    complete: frozenset[str] = frozenset()

    @abstractmethod
    def deliver(self, count: int) -> None:
        """Makes the script that many rows long."""

    def deliver_more(self, rows: int) -> None:
        self.delivered += rows
        self.deliver(self.delivered)

    @abstractmethod
    def found(self) -> Tables:
        """The rows of the tables."""

    @abstractmethod
    def wanted(self) -> Tables:
        """The rows that plain Python computes from all delivered ones."""

    def check_all(self, *, drained: bool = True) -> None:
        """Every table has the rows of plain Python; before the end of the input, some of them may wait."""
        found, wanted = self.found(), self.wanted()
        assert found.keys() == wanted.keys() >= self.complete
        for name, rows in wanted.items():
            assert found[name] == rows or (name not in self.complete and not drained and found[name] <= rows), name

    def waiting(self) -> set[str]:
        found = self.found()
        return {name for name, rows in self.wanted().items() if found[name] != rows}

    def write(self, name: str, rows: Sequence[Row], below: str = "") -> None:
        """Writes a script, and what is new in it as one more file of a folder, which Spark reads."""
        lines = [json.dumps(row) + "\n" for row in rows]
        (self.folder / f"{name}.jsonl").write_text("".join(lines))
        files = self.folder / "in" / below
        files.mkdir(parents=True, exist_ok=True)
        known = sum(len(file.read_text().splitlines()) for file in files.iterdir())
        (files / f"{len(rows):04}.json").write_text("".join(lines[known:]))
