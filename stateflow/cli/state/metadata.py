"""Prints tables of metadata: snapshots, operators, states and files."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import pyarrow as pa

from stateflow.cli.formatting import align_columns, human_bytes, in_utc, print_text
from stateflow.connectors.json_rows import encode, json_objects

_SIZES = ("bytes", "size")


def print_metadata(table: pa.Table, as_json: bool) -> None:
    """Prints a table of `read_metadata`: aligned columns, or a line of JSON for each row."""
    if as_json:
        for row in json_objects(table):
            print_text(encode(row).decode())
        return
    columns = [[name, *(_cell(name, value) for value in table.column(name).to_pylist())] for name in table.schema.names]
    for line in align_columns(list(zip(*columns, strict=True))):
        print_text(line)


def _cell(column: str, value: object) -> str:
    if value is None:
        return ""
    if column in _SIZES and isinstance(value, int):
        return human_bytes(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return in_utc(value.isoformat())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(_part(part) for part in value)
    return str(value)


def _part(value: object) -> str:
    """Returns an item of a list: of a pin, who holds it and why."""
    return f"{value['owner']} ({value['reason']})" if isinstance(value, dict) else str(value)
