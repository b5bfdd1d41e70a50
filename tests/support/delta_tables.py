"""Rows, tables, jobs and processes that the Delta tests share."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import uuid
from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction
from hypothesis import strategies as st

from stateflow.api.schema import RowSchema
from stateflow.api.sink import Sink, SinkContext, Writing
from stateflow.clock import SystemClock
from stateflow.connectors.delta import log
from stateflow.connectors.delta.log import LOG_FOLDER
from stateflow.connectors.table_folder import DiskFolder
from stateflow.runtime.task.row_conversion import to_batch
from stateflow.state.handles import Committable
from stateflow.storage import open_storage
from stateflow.types.columns.precision import precision

JOB = "0123456789abcdef0123456789abcdef"

Instant = Annotated[datetime.datetime, msgspec.Meta(tz=True)]


def entry_path(table: Path, version: int) -> Path:
    """Returns the path of the log entry of a version."""
    return table / log.entry_path(version)


def checkpoint(table: Path, seconds: float = 600) -> None:
    """Creates a checkpoint of the newest version of a table."""
    folder = DiskFolder(table)
    listing = log.list_log(folder)
    log.checkpoint(folder, max((*listing.entries, *listing.checkpoints), default=0), {}, seconds)


Price = Annotated[decimal.Decimal, precision(12, scale=2)]
Exact = Annotated[decimal.Decimal, precision(38, scale=4)]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Inner(msgspec.Struct):
    number: int
    price: Price | None = None
    lasting: list[datetime.timedelta] = []


class Every(msgspec.Struct, kw_only=True):
    id: int
    amount: float | None = None
    text: str | None = None
    flag: bool | None = None
    raw: bytes | None = None
    day: datetime.date | None = None
    local: datetime.datetime | None = None
    instant: Instant | None = None
    price: Price | None = None
    exact: Exact | None = None
    time: datetime.time | None = None
    lasting: datetime.timedelta | None = None
    uid: uuid.UUID | None = None
    colour: Colour | None = None
    inner: Inner | None = None
    numbers: list[float | None] | None = None
    named: dict[str, Inner | None] | None = None


class Pair(msgspec.Struct):
    id: int
    text: str | None = None


def context(row_class: type[Any] = Pair, uid: str = "out", job: str = JOB) -> SinkContext:
    return SinkContext(job, uid, RowSchema.of(row_class))


def batch(about: SinkContext, rows: Iterable[msgspec.Struct]) -> pa.RecordBatch:
    return to_batch(list(rows), about.schema)


def pairs(first: int, count: int) -> list[Pair]:
    return [Pair(i, f"row {i}") for i in range(first, first + count)]


def write(
    sink: Sink, about: SinkContext, rows: Iterable[msgspec.Struct], writing: Writing | None = None
) -> list[Committable]:
    writer = sink.writer(about, writing or Writing(1, 1, 0, SystemClock().new_id()))
    writer.write(batch(about, rows))
    return writer.close()


def put(
    sink: Sink, about: SinkContext, token: int, rows: Iterable[msgspec.Struct], generation: int = 1
) -> list[Committable]:
    """Writes and commits rows as checkpoint `token`."""
    files = write(sink, about, rows, Writing(generation, token, 0, SystemClock().new_id()))
    assert sink.open_table(about).commit(token, files) is not None
    return files


def create_mapped(table: Path, mode: str, columns: Sequence[str]) -> None:
    """An empty table of texts whose data files have other names for its columns: ``col-1`` and so on."""
    prefix = "delta.columnMapping"
    fields = [
        {
            "name": name, "type": "string", "nullable": True,
            "metadata": {f"{prefix}.id": at, f"{prefix}.physicalName": f"col-{at}"},
        }
        for at, name in enumerate(columns, 1)
    ]  # fmt: skip
    metadata = {
        "id": "mapped", "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}), "partitionColumns": [],
        "configuration": {f"{prefix}.mode": mode},
    }  # fmt: skip
    actions = {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}, {"metaData": metadata}
    DiskFolder(table).make_folder(LOG_FOLDER)
    entry_path(table, 0).write_text("\n".join(map(json.dumps, actions)))


def rows(table: Path | str) -> list[dict[str, Any]]:
    """The rows of a table whose files have no deleted rows."""
    uris = DeltaTable(str(table)).file_uris()
    return [row for uri in uris for row in pq.read_table(_file(uri), partitioning=None).to_pylist()]


def _file(uri: str) -> str | BytesIO:
    """Returns what Arrow reads a file from, which knows no address of Azure."""
    folder, _, name = uri.rpartition("/")
    return BytesIO(open_storage(folder).get(name)) if uri.startswith("az:") else uri


def visible(table: Path | str) -> list[dict[str, Any]]:
    """The rows of all files that the newest version of a table has, as deltalake and Parquet see it."""
    return sorted(rows(table), key=lambda row: row["id"])


def ids(table: Path | str) -> list[int]:
    return [row["id"] for row in visible(table)]


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def commit_elsewhere(table: Path | str, rows: list[Pair], application: str = "", token: int = 0) -> None:
    name = f"{SystemClock().new_id()}.parquet"
    pq.write_table(pa.Table.from_pylist([msgspec.structs.asdict(r) for r in rows]), Path(table) / name)
    opened = DeltaTable(str(table))
    size = (Path(table) / name).stat().st_size
    opened.create_write_transaction(
        [AddAction(name, size, {}, 0, True, f'{{"numRecords": {len(rows)}}}')],
        "append",
        opened.schema(),
        commit_properties=CommitProperties(app_transactions=[Transaction(application, token)] if application else None),
    )


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


_LONGEST = datetime.timedelta(99_000_000)
_LONG = st.integers(-(1 << 63), (1 << 63) - 1)


def _decimals(digits: int, scale: int) -> st.SearchStrategy[decimal.Decimal]:
    largest = 10**digits - 1
    return st.integers(-largest, largest).map(lambda n: decimal.Decimal(n).scaleb(-scale, decimal.Context(prec=100)))


def every_row(texts: st.SearchStrategy[str], floats: st.SearchStrategy[float]) -> st.SearchStrategy[Every]:
    prices, durations = _decimals(12, 2), st.timedeltas(-_LONGEST, _LONGEST)
    inners = st.builds(Inner, _LONG, st.none() | prices, st.lists(durations, max_size=2))
    return st.builds(
        Every, id=_LONG, amount=st.none() | floats, text=st.none() | texts, flag=st.none() | st.booleans(),
        raw=st.none() | st.binary(max_size=5), day=st.none() | st.dates(), local=st.none() | st.datetimes(),
        instant=st.none() | st.datetimes(timezones=st.just(datetime.UTC)), price=st.none() | prices,
        exact=st.none() | _decimals(38, 4), time=st.none() | st.times(), lasting=st.none() | durations,
        uid=st.none() | st.uuids(), colour=st.none() | st.sampled_from(Colour), inner=st.none() | inners,
        numbers=st.none() | st.lists(st.none() | floats, max_size=3),
        named=st.none() | st.dictionaries(texts, st.none() | inners, max_size=2),
    )  # fmt: skip
