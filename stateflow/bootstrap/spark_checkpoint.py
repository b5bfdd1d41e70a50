"""The checkpoint of a streaming query of Spark, from which a savepoint takes positions and state.

The query's logs have the planned offsets and the commits of its batches, and the files that a file source has read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec

from stateflow.api.file_log import FilePattern
from stateflow.api.source import FROM_START, InitialPosition, LocalSource, Source, StartKind, StartPosition
from stateflow.checkpoint.log.documents import NOT_BEGUN
from stateflow.checkpoint.restore.source_positions import offset_lines
from stateflow.errors import ConfigError, CorruptFile, DataError, MissingFile, StateflowError
from stateflow.storage import Storage, open_location
from stateflow.types.decoders import json_decoder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from stateflow.bootstrap.spark_state import Properties, SparkState, StateAddress, StateStores


_SHOWN = 200


class SparkCheckpoint:
    """The checkpoint folder of a query of Spark's Structured Streaming after one of its committed batches.

    Stop the query first: the folder is only read, and a query that runs removes old batches. Output of a batch that
    was planned and not committed may exist in its sink; stateflow processes that input again.

    Args:
        path: path or URI of the folder, the ``checkpointLocation`` of the query.
        batch: Spark's number of a committed batch; by default the newest one. Spark keeps the last 100.

    Attributes:
        path: the path, as Spark takes it.
        query_id: id of the query.
        batch: number of the batch.
        time: Spark's time of the batch, in milliseconds since 1970.
        watermark: the watermark of the query after the batch, in milliseconds since 1970; None before the first one.
        offsets: the offset of each of its sources, as Spark writes it, in the order of the query.

    Raises:
        ConfigError: the folder is not a checkpoint, the batch is not committed, or another version of Spark wrote it.
        CorruptFile: an entry of its logs is damaged or missing.
    """

    def __init__(self, path: str | os.PathLike[str], *, batch: int | None = None) -> None:
        self.path = os.fspath(path) if "://" in os.fspath(path) else os.path.abspath(path)
        # Hadoop has its own scheme for S3.
        scheme, separator, rest = self.path.partition("://")
        self._storage = open_location(f"s3://{rest}" if separator and scheme in ("s3a", "s3n") else self.path)
        self.query_id = query_id(self._storage)
        found = committed_batch(self._storage, batch)
        self.batch, self.time, self.offsets = found.number, found.time, found.offsets
        self.watermark = found.watermark or None
        self._stores: StateStores | None = None

    def source_position(self, source: Source | LocalSource, number: int | None = None) -> InitialPosition:
        """Returns the position of a source after the batch, for `SavepointWriter.with_source`.

        Nothing but the checkpoint is read. A file source skips the files that the query has read; every other source
        takes the offset as it is.

        Args:
            source: the source, as the job declares it: a KafkaSource, DeltaSource, FileSource or SparkSource for the
                data that the query reads.
            number: number of the source in the query, from 0, as in ``sources`` of its progress; not needed for a
                query with one source.

        Raises:
            ConfigError: the query has no source of this number, or the offset is not one of this source.
            CorruptFile: the log of the files that were read is damaged.
        """
        count = len(self.offsets)
        if (number is None and count > 1) or (number is not None and not 0 <= number < count):
            raise ConfigError(
                "the query has several sources" if number is None else "the query has no source of this number",
                hint="pass the number of the source: its place in the sources of the query's progress, from 0",
                path=self.path,
                number=number,
                offsets={at: offset[:_SHOWN] for at, offset in enumerate(self.offsets[:10])},
            )
        number = number or 0
        log = f"sources/{number}/"
        names = [blob.key.removeprefix(log) for blob in self._storage.list(log)]
        try:
            return convert_offset(source, self.offsets[number], names, lambda name: self._storage.get(f"{log}{name}"))
        except StateflowError as e:
            e.add_facts(path=self.path, batch=self.batch, number=number)
            raise

    def state(
        self, spark: SparkSession, variable: str = "", *, operator: int | None = None, store: str = ""
    ) -> SparkState:
        """Returns the state of an operator after the batch, as Spark's own state reader finds it.

        Rows are read when the savepoint is written.

        Args:
            spark: the session, of the version that has written the checkpoint or a newer one.
            variable: name of a state variable of transformWithState; empty for an aggregation, or for another operator
                that Spark's reader reads as key and value, such as dropDuplicates.
            operator: Spark's number of the operator, from 0, which counts from the sink to the sources: in
                ``dropDuplicates(…).groupBy(…)``, the aggregation is 0. Not needed for a query with one stateful
                operator.
            store: name of the state store, for an operator with several ones.

        Raises:
            ConfigError: the query has no such operator or variable, or several operators and no number was given, or
                Spark cannot read its state.
        """
        from stateflow.bootstrap.spark_state import read_state, read_variable

        address, properties = self._operator(spark, operator)
        return read_variable(spark, address, properties, variable) if variable else read_state(spark, address, store)

    def timers(
        self, spark: SparkSession, *, key: Mapping[str, str] | None = None, operator: int | None = None
    ) -> DataFrame:
        """Returns the timers of an operator of transformWithState, for `SavepointWriter.with_operator`.

        Args:
            spark: the session.
            key: the key columns, by name, as expressions of Spark's SQL over the struct ``key``; by default its fields.
            operator: as for `state`.

        Raises:
            ConfigError: the query has no such operator, or several and no number was given, or it has no timers.
        """
        from stateflow.bootstrap.spark_state import read_timers

        return read_timers(spark, *self._operator(spark, operator), key)

    def _operator(self, spark: SparkSession, operator: int | None) -> tuple[StateAddress, Properties]:
        from stateflow.bootstrap.spark_state import StateAddress, operator_properties, read_stores

        if self._stores is None:
            self._stores = read_stores(spark, self.path, self.batch)
        number = self._stores.number_of(operator)
        return StateAddress(self.path, self.batch, self.time, number), operator_properties(self._stores, number)


def convert_offset(
    source: Source | LocalSource, offset: str, names: Iterable[str], read: Callable[[str], bytes]
) -> InitialPosition:
    """Returns the position of a source of a job for an offset of Spark's source.

    Args:
        source: the source, as the job declares it.
        offset: the line of Spark's offset log.
        names: names of the files of Spark's log of the source.
        read: returns the content of one of them.

    Raises:
        ConfigError: the offset is not one of this kind of source, or is of other data.
        CorruptFile: the log of files is damaged.
    """
    if isinstance(source, LocalSource):
        raise ConfigError(
            "a source that Spark's query does not have cannot continue from its checkpoint",
            hint="declare a KafkaSource, DeltaSource, FileSource or SparkSource; or pass a position of this source",
            source=source.description,
        )
    if offset == NOT_BEGUN:
        # The source was not read yet, but may have stored where it begins, such as the offsets of Kafka's end.
        first = source.first_offset({name: read(name) for name in names})
        return InitialPosition(first or FROM_START)
    newest = file_offset(offset)
    if source.files_address is not None:
        if newest is None:
            raise ConfigError(
                "the offset does not belong to a file source",
                hint="pass the number of the source in the query, and the source that continues it",
                source=source.description,
                offset=offset[:300],
            )
        return file_position(newest, names, read, source.files_address)
    if StartKind.POSITION not in source.start_kinds:
        raise ConfigError(
            "the source cannot be set to an offset of Spark",
            hint="pass another position to with_source",
            source=source.description,
            supported=sorted(source.start_kinds),
        )
    position = source.initial_position(StartPosition(StartKind.POSITION, position=offset))
    if newest is None:
        return position
    # A source of any format that reads files: its offset is a number in the log.
    return file_position(newest, names, read, None)


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
        raise _damaged_entry(storage, key, "it has no offset, or one that is empty or has control characters")
    before = f"offsets/{number - 1}"
    # Spark never changes the number of sources. A file that lost its last line still looks like one of Spark.
    if number and storage.size(before) is not None and len(_lines(storage, before)) != len(rest) + 1:
        raise _damaged_entry(storage, key, f"it has {len(offsets)} offsets, and the batch before has another number")
    return offsets, time


def _numbers(storage: Storage, log: str) -> list[int]:
    names = (blob.key.rpartition("/") for blob in storage.list(f"{log}/"))
    return [int(name) for folder, _, name in names if folder == log and _ENTRY_NAME.fullmatch(name)]


def _lines(storage: Storage, key: str) -> list[str]:
    try:
        data = _content(storage, key)
    except MissingFile as e:
        raise _damaged_entry(storage, key, "it does not exist") from e
    return _decoded(lambda: offset_lines(data), storage, key)


def _content(storage: Storage, key: str) -> bytes:
    try:
        return storage.get(key, _LARGEST_ENTRY)
    except DataError as e:
        if isinstance(e, MissingFile | CorruptFile):
            raise
        raise _damaged_entry(storage, key, str(e)) from e


def _first(lines: Sequence[str]) -> str:
    if not lines:
        raise ValueError("it has one line only")
    return lines[0]


def _check_version(version: str, known: Sequence[str], storage: Storage, key: str) -> None:
    if version in known:
        return
    if not re.fullmatch(r"v[0-9]{1,9}", version, re.ASCII):
        raise _damaged_entry(storage, key, f"it begins with {version[:20]!r} instead of a version")
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
        raise _damaged_entry(storage, key, str(e)) from e


def _damaged_entry(storage: Storage, key: str, reason: str) -> CorruptFile:
    return CorruptFile(
        "an entry of a streaming query's log is damaged or missing",
        hint=_COPY_HINT,
        path=f"{storage.uri}/{key}",
        reason=reason[:300],
    )


_NAME = re.compile(r"(0|[1-9][0-9]{0,17})(\.compact)?", re.ASCII)
_VERSION = "v1"
_POSITION = '{"logOffset":0}'


class _Offset(msgspec.Struct, forbid_unknown_fields=True):
    logOffset: Annotated[int, msgspec.Meta(ge=0, lt=10**18)]


class _ReadFile(msgspec.Struct):
    path: str
    timestamp: int
    batchId: Annotated[int, msgspec.Meta(ge=0)]


_offset, _read_file = json_decoder(_Offset), json_decoder(_ReadFile)


def file_offset(line: str) -> int | None:
    """Returns the newest entry of the log in the offset of a file source; None for the offset of another source."""
    try:
        return _offset.decode(line).logOffset
    except (msgspec.MsgspecError, RecursionError):
        return None


def file_position(
    newest: int, names: Iterable[str], read: Callable[[str], bytes], address: str | None
) -> InitialPosition:
    """Returns the position after all files up to an entry of the log, as one entry of a new log.

    Args:
        newest: number of the newest entry that belongs to the position; the log may have later ones.
        names: names of all files of the log.
        read: returns the content of one of them.
        address: the folder or pattern of the source that continues; None if unknown.

    Raises:
        CorruptFile: an entry is missing, or cannot be decoded.
        ConfigError: another version of Spark wrote the log, or the source does not read these files.
    """
    files: dict[str, int] = {}
    entries = set()
    for name in _needed(newest, names):
        for file in _files(name, read(name)):
            if file.batchId <= newest:
                entries.add(file.batchId)
                files[file.path] = max(file.timestamp, files.get(file.path, file.timestamp))
    # Spark makes an entry only for files: one without a file was damaged.
    if len(entries) != newest + 1:
        raise _damaged_file_log(str(newest), f"of {newest + 1} entries, {len(entries)} name a file")
    _check_read_by(address, files)
    lines = [{"path": path, "timestamp": time, "batchId": 0} for path, time in sorted(files.items())]
    log = b"\n".join([_VERSION.encode(), *map(msgspec.json.encode, lines)])
    return InitialPosition(_POSITION, {"0": log}, f"{len(files)} files that Spark has read")


def _needed(newest: int, names: Iterable[str]) -> Sequence[str]:
    """Returns the entries that have all files up to an entry: a compact one also has those of all entries before it."""
    found = [match for match in map(_NAME.fullmatch, names) if match]
    plain = {int(match[1]) for match in found if not match[2]}
    compact = sorted(int(match[1]) for match in found if match[2])
    for first in [*(number for number in reversed(compact) if number <= newest), -1]:
        # The offset of a hostile entry may be any number.
        if newest - first <= len(plain) and plain.issuperset(range(first + 1, newest + 1)):
            after = [str(number) for number in range(first + 1, newest + 1)]
            return [f"{first}.compact", *after] if first >= 0 else after
    later = [number for number in compact if number > newest]
    if not later:
        raise _damaged_file_log(str(newest), "an entry up to this one does not exist")
    return [f"{later[0]}.compact"]


def _files(name: str, content: bytes) -> Iterator[_ReadFile]:
    version, *lines = content.split(b"\n")
    if version != _VERSION.encode():
        if not re.fullmatch(rb"v[0-9]{1,9}", version):
            raise _damaged_file_log(name, "it does not begin with a version")
        raise ConfigError(
            "the log of a file source has a version that is not supported",
            hint="a newer Spark writes it; give a time as the position: files that were modified before are skipped",
            entry=name,
            version=version.decode(),
            supported=[_VERSION],
        )
    number, is_compact = int(name.partition(".")[0]), "." in name
    try:
        for line in filter(None, lines):
            file = _read_file.decode(line)
            if file.batchId > number or not (is_compact or file.batchId == number):
                raise ValueError(f"it has a file of entry {file.batchId}")
            yield file
    except (msgspec.MsgspecError, ValueError, RecursionError) as e:
        raise _damaged_file_log(name, str(e)) from e


def _check_read_by(address: str | None, files: Mapping[str, int]) -> None:
    """Raises ConfigError if a source does not read the files: Spark would recognize none of them, and read them again.

    Hadoop's file system of paths without a scheme is not known here; it is taken from the first file.
    """
    if address is None:
        return
    scheme, separator, rest = next(iter(files)).partition("://")
    server = rest.partition("/")[0] if separator else ""
    pattern = FilePattern(address, f"{scheme}://{server}/" if separator else "file:///")
    others = [path for path in sorted(files) if not pattern.matches(path)]
    if others:
        raise ConfigError(
            "the query has read files that the source does not read",
            hint="declare the source with the path that the query has; if its folder was moved, give a time as the "
            "position; if the query has several sources, pass the number of this one",
            source=address,
            files=others[:3],
            count=len(others),
        )


def _damaged_file_log(name: str, reason: str) -> CorruptFile:
    return CorruptFile(
        "the log of the files that a source has read is damaged or incomplete",
        hint="restore the checkpoint from a copy; or give a time as the position: files that were modified before are "
        "skipped",
        entry=name,
        reason=reason[:300],
    )
