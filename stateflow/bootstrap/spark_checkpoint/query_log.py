"""The logs of a streaming query in its checkpoint folder: planned offsets and commits of its batches."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec

from stateflow.checkpoint.restore.source_positions import offset_lines
from stateflow.errors import ConfigError, CorruptFile, DataError, MissingFile
from stateflow.storage import Storage
from stateflow.types.decoders import json_decoder

T = TypeVar("T")
_ENTRY_NAME = re.compile(r"0|[1-9][0-9]{0,17}", re.ASCII)
_LARGEST_ENTRY = 64 << 20
_OFFSET_VERSIONS, _COMMIT_VERSIONS = ("v1",), ("v1", "v2")
_CONTROLS = re.compile(r"[\0-\x1f\x7f]")
_COPY_HINT = "restore the folder from a copy, or import an earlier batch"

_Millis = Annotated[int, msgspec.Meta(ge=0, le=1 << 52)]


class _Query(msgspec.Struct):
    id: str


class _Planned(msgspec.Struct):
    batchTimestampMs: _Millis = 0


class _Committed(msgspec.Struct):
    nextBatchWatermarkMs: _Millis = 0


_query, _planned, _committed = json_decoder(_Query), json_decoder(_Planned), json_decoder(_Committed)


@dataclass(frozen=True)
class CommittedBatch:
    """A batch that Spark has committed.

    Attributes:
        number: Spark's number of the batch.
        offsets: the position of each source after the batch, in the order of the query; ``-`` for a source that was
            not read.
        time: Spark's time of the batch, in milliseconds since 1970.
        watermark: the watermark after the batch, in milliseconds since 1970; 0 before the first one.
    """

    number: int
    offsets: tuple[str, ...]
    time: int
    watermark: int


def query_id(storage: Storage) -> str:
    """Returns the id of the query of a checkpoint.

    Raises:
        ConfigError: the folder is not a checkpoint of a streaming query.
        CorruptFile: its metadata cannot be decoded.
    """
    try:
        data = _content(storage, "metadata")
    except MissingFile as e:
        raise ConfigError(
            "the folder is not a checkpoint of a streaming query of Spark",
            hint="pass the folder that the query has as checkpointLocation; it has the file metadata",
            path=storage.uri,
        ) from e
    return _decoded(lambda: _query.decode(data).id, storage, "metadata")


def committed_batch(storage: Storage, wanted: int | None) -> CommittedBatch:
    """Returns a committed batch of a checkpoint.

    Args:
        storage: the checkpoint folder.
        wanted: number of the batch; None for the newest one.

    Raises:
        ConfigError: the batch is not committed, or a newer version of Spark wrote its entries.
        CorruptFile: an entry cannot be decoded, or is missing.
    """
    committed = sorted(_numbers(storage, "commits"))
    if not committed or (wanted is not None and wanted not in committed):
        raise ConfigError(
            "the checkpoint has no committed batch" if not committed else "the batch is not committed, or was removed",
            hint="run the query until a batch is committed" if not committed else "import one of the committed batches",
            path=storage.uri,
            batch=wanted,
            planned=max(_numbers(storage, "offsets"), default=None),
            committed=[committed[0], committed[-1]] if committed else [],
        )
    number = committed[-1] if wanted is None else wanted
    key = f"commits/{number}"
    version, *rest = _lines(storage, key)
    _check_version(version, _COMMIT_VERSIONS, storage, key)
    watermark = _decoded(lambda: _committed.decode(_first(rest)).nextBatchWatermarkMs, storage, key)
    offsets, time = _offsets(storage, number)
    return CommittedBatch(number, offsets, time, watermark)


def _offsets(storage: Storage, number: int) -> tuple[tuple[str, ...], int]:
    """Returns the offsets of a batch and its time."""
    key = f"offsets/{number}"
    version, *rest = _lines(storage, key)
    _check_version(version, _OFFSET_VERSIONS, storage, key)
    time = _decoded(lambda: _planned.decode(_first(rest)).batchTimestampMs, storage, key)
    offsets = tuple(rest[1:])
    if not offsets or any(not line or _CONTROLS.search(line) for line in offsets):
        raise _damaged(storage, key, "it has no offset, or one that is empty or has control characters")
    before = f"offsets/{number - 1}"
    # Spark never changes the number of sources. A file that lost its last line still looks like one of Spark.
    if number and storage.size(before) is not None and len(_lines(storage, before)) != len(rest) + 1:
        raise _damaged(storage, key, f"it has {len(offsets)} offsets, and the batch before has another number")
    return offsets, time


def _numbers(storage: Storage, log: str) -> list[int]:
    names = (blob.key.rpartition("/") for blob in storage.list(f"{log}/"))
    return [int(name) for folder, _, name in names if folder == log and _ENTRY_NAME.fullmatch(name)]


def _lines(storage: Storage, key: str) -> list[str]:
    try:
        data = _content(storage, key)
    except MissingFile as e:
        raise _damaged(storage, key, "it does not exist") from e
    return _decoded(lambda: offset_lines(data), storage, key)


def _content(storage: Storage, key: str) -> bytes:
    try:
        return storage.get(key, _LARGEST_ENTRY)
    except DataError as e:
        if isinstance(e, MissingFile | CorruptFile):
            raise
        raise _damaged(storage, key, str(e)) from e


def _first(lines: Sequence[str]) -> str:
    if not lines:
        raise ValueError("it has one line only")
    return lines[0]


def _check_version(version: str, known: Sequence[str], storage: Storage, key: str) -> None:
    if version in known:
        return
    if not re.fullmatch(r"v[0-9]{1,9}", version, re.ASCII):
        raise _damaged(storage, key, f"it begins with {version[:20]!r} instead of a version")
    raise ConfigError(
        "an entry of a streaming query's log has a version that is not supported",
        hint="a query whose sources have names, or of a newer Spark, writes it; give other positions to with_source",
        path=f"{storage.uri}/{key}",
        version=version,
        supported=list(known),
    )


def _decoded(decode: Callable[[], T], storage: Storage, key: str) -> T:
    try:
        return decode()
    except (msgspec.MsgspecError, ValueError, RecursionError) as e:
        raise _damaged(storage, key, str(e)) from e


def _damaged(storage: Storage, key: str, reason: str) -> CorruptFile:
    return CorruptFile(
        "an entry of a streaming query's log is damaged or missing",
        hint=_COPY_HINT,
        path=f"{storage.uri}/{key}",
        reason=reason[:300],
    )
