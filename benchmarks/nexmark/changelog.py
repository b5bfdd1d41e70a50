"""The final rows of a result that Flink has written as changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import msgspec

Value = str | int | Decimal | datetime | None
Row = tuple[Value, ...]
Rows = Counter[Row]
"""Each row, and how often it is in the result."""


_Fields = Mapping[str, str | int | Decimal | None]


def final_rows(folder: Path, columns: Sequence[tuple[str, str]]) -> Rows:
    """Returns the rows that all changes below a folder leave.

    Changes of one row may be in several files, whose order is not known: only their sums count.

    Args:
        folder: with files in Flink's format debezium-json.
        columns: names and Flink's types of the columns.

    Raises:
        ValueError: a row was removed more often than it was added.
    """
    changes: Rows = Counter()
    for given, count in _changes(folder):
        changes[tuple(_value(given[name], kind) for name, kind in columns)] += count
    negative = [row for row, count in changes.items() if count < 0]
    if negative:
        raise ValueError(f"{len(negative)} rows were removed and never added, among them {negative[0]}")
    # Without rows that are no longer there.
    return +changes


def _changes(folder: Path) -> Iterator[tuple[_Fields, int]]:
    """Yields each row that is added, with 1, and each that is removed, with -1."""
    # Decimals have all their digits: they are not read as floating-point numbers.
    decoder = msgspec.json.Decoder(float_hook=Decimal)
    for path in sorted(folder.rglob("part-*")):
        with path.open("rb") as lines:
            for line in lines:
                change = decoder.decode(line)
                yield (change["after"], 1) if change["op"] == "c" else (change["before"], -1)


def _value(given: str | int | Decimal | None, kind: str) -> Value:
    for prefix, convert in _CONVERTERS.items():
        if kind.startswith(prefix) and given is not None:
            return convert(given)
    return given


_CONVERTERS: dict[str, Callable[[str | int | Decimal], Value]] = {
    "TIMESTAMP": lambda text: datetime.fromisoformat(str(text)),
    "DECIMAL": Decimal,
}
