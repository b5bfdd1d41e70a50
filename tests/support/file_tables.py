"""Folders of a file sink, read by the rules of Spark's file sink log: shares nothing with the code under test."""

from __future__ import annotations

import csv
import json
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq

from stateflow.storage import open_storage


def visible(table: Path, address: str = "") -> list[Path]:
    """The files that Spark sees: the files of the newest compact entry, and of the entries after it.

    Args:
        table: the folder.
        address: what the log calls it; empty for the path.
    """
    base = f"{address or table.as_uri()}/"
    names = [path.name for path in (table / "_spark_metadata").iterdir()]
    assert all(name.isdecimal() or name.removesuffix(".compact").isdecimal() for name in names), names
    numbers = sorted(int(name.removesuffix(".compact")) for name in names)
    compact = max((int(name.removesuffix(".compact")) for name in names if name.endswith(".compact")), default=0)
    found = []
    for number in range(compact, numbers[-1] + 1):
        name = f"{number}.compact" if (number + 1) % 10 == 0 else str(number)
        first, *lines = (table / "_spark_metadata" / name).read_text().splitlines()
        assert first == "v1"
        paths = [json.loads(line)["path"] for line in lines]
        assert all(path.startswith(base) for path in paths), paths
        found += [table / unquote(path.removeprefix(base)) for path in paths]
    return [path for path in found if not path.name.startswith("_")]


def rows(table: Path, address: str = "") -> list[dict[str, Any]]:
    """The visible rows; arguments as for `visible`."""
    return [row for path in visible(table, address) for row in _rows(table, path)]


def rows_in_store(address: str) -> list[dict[str, Any]]:
    """The rows of a folder in a bucket."""
    storage = open_storage(address)
    with tempfile.TemporaryDirectory() as copy:
        for blob in storage.list(""):
            path = Path(copy, blob.key)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(storage.get(blob.key))
        return rows(Path(copy), address)


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
