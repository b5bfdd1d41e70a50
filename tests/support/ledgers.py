"""A partitioned source over files: a partition is a file, and an offset the number of a line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pyarrow as pa

from stateflow import BadRow, PartitionedSource, Split


class Entry(msgspec.Struct):
    account: str
    number: int
    at: Annotated[int, "milliseconds since 1970"]
    tags: list[str | None] = []
    note: str | None = None


class Ledgers(PartitionedSource):
    """Reads entries from ``NAME.jsonl`` in a folder; ``NAME.first`` has the number of lines that no longer count."""

    def __init__(self, folder: Path, *, arrow: bool = False, **arguments: Any) -> None:
        super().__init__(schema=Entry, **arguments)
        self.folder = folder
        self.arrow = arrow

    @property
    def description(self) -> str:
        return f"Ledgers[{self.folder}]"

    def starts(self) -> Mapping[str, int]:
        return {path.stem: int(path.read_text()) for path in self.folder.glob("*.first")}

    def ends(self) -> Mapping[str, int]:
        return {path.stem: len(path.read_text().splitlines()) for path in self.folder.glob("*.jsonl")}

    def read_split(self, split: Split) -> Iterator[object]:
        lines = (self.folder / f"{split.partition}.jsonl").read_text().splitlines()[split.start : split.end]
        if self.arrow:
            names = msgspec.structs.fields(Entry)
            read = [json.loads(line) for line in lines]
            columns = {field.name: [row.get(field.name) for row in read] for field in names}
            types = [pa.string(), pa.int32(), pa.int64(), pa.list_(pa.string()), pa.string()]
            yield pa.table([pa.array(c, t) for c, t in zip(columns.values(), types, strict=True)], list(columns))
            return
        for number, line in enumerate(lines, split.start):
            if line == "raise":
                raise LookupError(f"line {number}")
            try:
                yield json.loads(line)
            except ValueError as e:
                yield BadRow(line, str(e), number)


def write(folder: Path, name: str, *entries: Mapping[str, object] | str) -> None:
    folder.mkdir(exist_ok=True)
    with (folder / f"{name}.jsonl").open("a") as file:
        file.writelines((entry if isinstance(entry, str) else json.dumps(entry)) + "\n" for entry in entries)


def entry(account: str, number: int, **more: object) -> dict[str, object]:
    return {"account": account, "number": number, "at": number, "tags": [account, None], "note": None, **more}
