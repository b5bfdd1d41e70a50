"""Reads a `DeltaSource` as a streaming query does, in this process and without Spark."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa

from stateflow import DeltaSource
from stateflow.api.input_files import FileShare
from stateflow.api.source import FROM_START
from stateflow.checkpoint.barriers import error_in_text
from stateflow.connectors.delta.commits import Offset


def batches_of(source: DeltaSource, most: int = 1000, start: Offset | None = None) -> Iterator[tuple[str, pa.Table]]:
    """Yields the offset and the rows of each batch until the end of the table, as a query without Spark."""
    first = source._first_offset() if start is None else start
    at, before = first, FROM_START if start is None else msgspec.json.encode(start).decode()
    while (after := source._feed.next_offset(at, most)) != at:
        end = msgspec.json.encode(after).decode()
        format = source.files_between(before, end)
        shares = [FileShare(name, 0, size, size) for name, size in format.sizes]
        try:
            found = [batch for share in shares for batch in format.read(share, source.schema)]
        except RuntimeError as e:
            raise error_in_text(str(e)) or e from e
        yield end, pa.Table.from_batches(found, source.schema.arrow)
        at, before = after, end
