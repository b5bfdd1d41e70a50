"""Folders of a file sink, read by the rules of Spark's file sink log: shares nothing with the code under test."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq


def visible(table: Path) -> list[Path]:
    """The files that Spark sees: those of the newest compact entry, and of the entries after it."""
    names = [path.name for path in (table / "_spark_metadata").iterdir()]
    assert all(name.isdecimal() or name.removesuffix(".compact").isdecimal() for name in names), names
    numbers = sorted(int(name.removesuffix(".compact")) for name in names)
    compact = max((int(name.removesuffix(".compact")) for name in names if name.endswith(".compact")), default=0)
    found = []
    for number in range(compact, numbers[-1] + 1):
        name = f"{number}.compact" if (number + 1) % 10 == 0 else str(number)
        first, *lines = (table / "_spark_metadata" / name).read_text().splitlines()
        assert first == "v1"
        found += [Path(unquote(json.loads(line)["path"].removeprefix("file://"))) for line in lines]
    return [path for path in found if not path.name.startswith("_")]


def rows(table: Path) -> list[dict[str, Any]]:
    return [row for path in visible(table) for row in _rows(table, path)]


def _rows(table: Path, path: Path) -> list[dict[str, Any]]:
    folders = [name.split("=", 1) for name in path.relative_to(table).parts[:-1]]
    values = {name: None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value) for name, value in folders}
    if path.suffix == ".json":
        found = [{"text": None, **json.loads(line)} for line in path.read_text().splitlines()]
    elif path.suffix == ".csv":
        with path.open(newline="") as file:
            found = list(csv.DictReader(file))
    else:
        found = pq.read_table(path, partitioning=None).to_pylist()
    return [{**row, **values} for row in found]
