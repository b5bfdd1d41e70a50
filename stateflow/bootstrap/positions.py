"""Where the sources of a job continue from a savepoint that is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from stateflow.api.source import InitialPosition, LocalSource, Source, StartKind
from stateflow.bootstrap.content import store_content
from stateflow.bootstrap.layout import Target
from stateflow.checkpoint.log.documents import Manifest, SourceFile, SourceWatermark, SparkPosition
from stateflow.checkpoint.restore.source_positions import (
    INLINE_LIMIT,
    SourceStart,
    position_before_first_batch,
    with_sources,
)
from stateflow.errors import ConfigError
from stateflow.runtime.restore.source_starts import choose_starts

AnySource = Source | LocalSource
Position = str | int | datetime | Mapping[str, object] | InitialPosition
"""``earliest``, ``latest``, a version, a time, offsets, the source's own text, or a position that is known already."""


@dataclass(frozen=True)
class GivenSource:
    """A source of the job, and where it continues.

    Attributes:
        source: the source, as the job declares it.
        position: its position.
        watermark: its watermark, in milliseconds since 1970; None before the first one.
    """

    source: AnySource
    position: Position
    watermark: int | None = None

    def stated(self, uid: str) -> str:
        """Returns the position as the caller has stated it; empty for one that was read from elsewhere."""
        return "" if isinstance(self.position, InitialPosition) else _text(uid, self.position)


def with_positions(
    manifest: Manifest, given: Mapping[str, GivenSource], on_spark: bool | None, at: datetime
) -> Manifest:
    """Returns a manifest with given positions of sources; it keeps those of its other sources.

    Args:
        manifest: the manifest.
        given: the sources, by uid.
        on_spark: whether Spark reads the sources of the job; None if the sources decide it.
        at: the time that ``latest`` refers to.

    Raises:
        ConfigError: a position is not one of its source, or sources with and without Spark are given.
    """
    is_new = not manifest.sources and manifest.spark is None
    chosen = on_spark if is_new else manifest.spark is not None
    is_read_by_spark = reads_by_spark([each.source for each in given.values()], chosen)
    base = replace(manifest, spark=position_before_first_batch([])) if is_new and is_read_by_spark else manifest
    kept = {position.uid: position.description for position in base.sources}
    starts = {uid: SourceStart(old=uid) for uid in kept}
    starts |= {uid: _start(uid, each, base, at) for uid, each in given.items()}
    descriptions = kept | {uid: each.source.description for uid, each in given.items()}
    wanted = sorted(descriptions.items())
    now = int(at.timestamp() * 1000)
    watermarks = [
        SourceWatermark(uid=uid, watermark=given[uid].watermark, active_at=now)
        for uid in sorted(given)
        if given[uid].watermark is not None
    ]
    found = with_sources(base, wanted, starts)
    others = [each for each in found.watermarks if each.uid not in given]
    return replace(found, watermarks=sorted((*others, *watermarks), key=lambda each: each.uid))


def reads_by_spark(sources: Sequence[AnySource], chosen: bool | None) -> bool:
    """Returns whether Spark reads sources.

    Args:
        sources: the sources.
        chosen: what the user has chosen; None if the sources decide it.

    Raises:
        ConfigError: sources with and without Spark are given, or the chosen one does not fit.
    """
    needed = [isinstance(source, Source) or source.needs_spark for source in sources]
    if chosen is None:
        chosen = any(needed)
    excluded = any(isinstance(source, LocalSource) and not _may_use_spark(source) for source in sources)
    if excluded if chosen else any(needed):
        raise ConfigError(
            "sources with and without Spark cannot be read by one job",
            hint="check on_spark, and the sources",
            sources=[source.description for source in sources],
        )
    return chosen


def _may_use_spark(source: LocalSource) -> bool:
    return source.needs_spark or source.may_use_spark


def _start(uid: str, given: GivenSource, base: Manifest, at: datetime) -> SourceStart:
    position = given.position
    if isinstance(position, InitialPosition):
        return SourceStart(offset=position.offset, logs=position.logs)
    option = f"{uid}={given.stated(uid)}"
    start = choose_starts([option], {uid: given.source}, base, at).starts[uid]
    if start is None:
        raise ConfigError("a new savepoint has no position that a source could keep", uid=uid, position=str(position))
    return start


def _text(uid: str, position: Position) -> str:
    """Returns a position as text, as an option of the command line has it."""
    if isinstance(position, datetime):
        zoned = position if position.tzinfo else position.replace(tzinfo=UTC)
        return f"timestamp:{zoned.isoformat()}"
    if isinstance(position, Mapping):
        return f"position:{msgspec.json.encode(position).decode()}"
    if isinstance(position, int) and not isinstance(position, bool):
        return f"position:{position}"
    if isinstance(position, str):
        is_option = position in (*StartKind, "keep") or position.startswith(("timestamp:", "position:"))
        return position if is_option else f"position:{position}"
    raise ConfigError(
        "a source's position has another type",
        hint="pass earliest, latest, a datetime, a version, offsets as a dict, or the source's own text",
        uid=uid,
        position=repr(position)[:200],
    )


def with_stored_logs(spark: SparkPosition, target: Target) -> SparkPosition:
    """Returns the position of Spark with each log that is too large for the manifest in a file of the savepoint."""
    return replace(spark, source_files=[_stored(file, target) for file in spark.source_files])


def _stored(file: SourceFile, target: Target) -> SourceFile:
    if file.content is None or len(file.content) <= INLINE_LIMIT:
        return file
    return SourceFile(path=file.path, handle=store_content(target, file.content))
