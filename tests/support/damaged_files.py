"""Parquet files of Delta tables whose bytes have changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_OPTIONS: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_statistics": False}


def damage_one(table: Path, damage: str) -> str:
    """Replaces the file of a table that has the text "right" by a damaged one; returns its name.

    Args:
        damage: ``checksum`` of a page, ``text`` that is not UTF-8, ``truncated``, ``empty``, or ``other`` content.
    """
    paths = [path for path in table.glob("*.parquet") if pq.read_table(path)["text"].to_pylist() == ["right"]]
    (path,) = paths
    pq.write_table(pq.read_table(path), path, write_page_checksum=True, **_OPTIONS)
    data = path.read_bytes()
    if damage == "text":
        column = pa.array([b"caf\xe9"], pa.binary()).view(pa.string())
        pq.write_table(pq.read_table(path).set_column(0, "text", column), path, **_OPTIONS)
    else:
        wrong = data.replace(b"right", b"wrong")
        path.write_bytes({"checksum": wrong, "truncated": data[:-10], "empty": b"", "other": b"id,text"}[damage])
    return path.name
