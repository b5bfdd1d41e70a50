"""The results of windows that fire more than once: a window's last result has all rows of its earlier ones."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.support import folder_tables
from tests.support.job_fixture import OracleJob, Tables


class Firing(NamedTuple):
    """A result of a window: the numbers of its rows."""

    key: str
    start: int
    end: int
    numbers: tuple[int, ...]


class FiringJob(OracleJob):
    """A job with windows that fire more than once. How often they do, and when, depends on the batches."""

    @abstractmethod
    def firings(self) -> Tables:
        """Every result of these windows, and every late row."""

    @abstractmethod
    def of_batches(self) -> Tables:
        """The results that a later one replaces, and the late rows: other batches have others."""


def firings(table: Path) -> list[Firing]:
    """All results in a table."""
    rows = folder_tables.rows(table)
    return [Firing(row["key"], row["start"], row["end"], tuple(sorted(row["numbers"]))) for row in rows]


def replaced(found: Iterable[Firing], last: Iterable[Firing]) -> Counter[Firing]:
    """The results without the last ones of their windows."""
    return Counter(set(found) - set(last))


def last_of_windows(found: Iterable[Firing]) -> list[Firing]:
    """The largest result of each window, for windows that do not merge."""
    return list({each[:3]: each for each in sorted(found, key=lambda each: len(each.numbers))}.values())


def last_of_sessions(found: Iterable[Firing]) -> list[Firing]:
    """The results whose rows no later result has: a late row may have merged the session into another one."""
    sets = {frozenset(each.numbers): each for each in found}
    return [each for rows, each in sets.items() if not any(rows < other for other in sets)]
