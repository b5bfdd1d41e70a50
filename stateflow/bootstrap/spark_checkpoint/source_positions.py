"""Offsets of sources of a streaming query of Spark, as positions of the sources of a job."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stateflow.api.source import FROM_START, InitialPosition, LocalSource, Source, StartKind, StartPosition
from stateflow.bootstrap.spark_checkpoint.file_log import file_offset, file_position
from stateflow.checkpoint.log.documents import NOT_BEGUN
from stateflow.errors import ConfigError


def converted(
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
                "the offset is not one of a source of files",
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
