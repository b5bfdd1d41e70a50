"""Positions that a user chooses for sources, as the sources themselves determine them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from stateflow.api.source import (
    FROM_START,
    InitialPosition,
    LocalSource,
    Source,
    StartKind,
    StartPosition,
    spark_position,
)
from stateflow.checkpoint.log.documents import Manifest
from stateflow.checkpoint.restore.source_positions import SourceStart
from stateflow.errors import ConfigError, StateflowError

KEEP = "keep"
_TIMESTAMP, _POSITION = "timestamp:", "position:"
_HINT = "use UID=keep, earliest, latest, timestamp:TIME, position:TEXT, or the position's JSON"


@dataclass(frozen=True)
class ChosenStarts:
    """The positions that a user has chosen.

    Attributes:
        starts: by uid of the source; None for a position that is kept.
        texts: the positions in words, by uid, of those that their offset does not describe.
    """

    starts: Mapping[str, SourceStart | None]
    texts: Mapping[str, str]


def choose_starts(
    options: Sequence[str], sources: Mapping[str, Source | LocalSource], target: Manifest, at: datetime
) -> ChosenStarts:
    """Returns the positions in `options`.

    Args:
        options: positions, each as ``UID=POSITION``.
        sources: the sources of the job, by uid.
        target: manifest of the target.
        at: the time that ``latest`` refers to.

    Raises:
        ConfigError: an option is not valid, or a source does not support it.
    """
    starts: dict[str, SourceStart | None] = {}
    texts: dict[str, str] = {}
    for option in options:
        uid, equals, value = (part.strip() for part in option.partition("="))
        if not (uid and equals and value):
            raise ConfigError("a source's position is not of the form UID=POSITION", hint=_HINT, source=option)
        if uid not in sources:
            raise ConfigError(
                "the job has no source with this uid",
                hint="use one of the known uids; a source that was removed needs no option",
                uid=uid,
                known=sorted(sources),
            )
        if uid in starts:
            raise ConfigError("a source has two positions", hint="give one of them", uid=uid)
        source = sources[uid]
        if value == KEEP:
            starts[uid] = None
            continue
        found = _initial_position(uid, source, _parsed(option, value, at))
        offset = found.offset
        if target.spark is not None and isinstance(source, LocalSource) and offset != FROM_START:
            offset = json.dumps(spark_position(offset))
        starts[uid] = SourceStart(offset=offset, logs=found.logs)
        if found.text:
            texts[uid] = found.text
    return ChosenStarts(starts, texts)


def can_keep(source: Source | LocalSource, before: str) -> bool:
    """Returns whether a source may continue from the position of a source with another description."""
    return not isinstance(source, Source) or source.can_keep(before)


def check_kept(uid: str, source: Source | LocalSource, before: str) -> None:
    """Raises ConfigError for a source that reads other data and cannot continue from the old position.

    Args:
        before: the description of the source in the target.
    """
    if not can_keep(source, before):
        raise ConfigError(
            "a position of other data cannot be kept by this kind of source",
            hint=f"if its folder was moved with all files that were read, use stateflow source relocate; otherwise set "
            f"the position: --source {uid}=earliest, latest or timestamp:TIME",
            uid=uid,
            before=before,
            now=source.description,
        )


def _parsed(option: str, value: str, at: datetime) -> StartPosition:
    if value == StartKind.EARLIEST:
        return StartPosition(StartKind.EARLIEST)
    if value == StartKind.LATEST:
        return StartPosition(StartKind.LATEST, at)
    if value.startswith(_TIMESTAMP):
        return StartPosition(StartKind.TIMESTAMP, _timestamp(option, value.removeprefix(_TIMESTAMP)))
    if value.startswith(_POSITION):
        return _checked_position(option, value.removeprefix(_POSITION))
    if value[0] in "{[":
        try:
            json.loads(value)
        except (ValueError, RecursionError) as e:
            raise ConfigError("a source's position is not valid JSON", hint=_HINT, source=option) from e
        return _checked_position(option, value)
    raise ConfigError("a source's position is not known", hint=_HINT, source=option)


def _checked_position(option: str, position: str) -> StartPosition:
    # A position is one line of Spark's offset log.
    if not position or not position.isprintable():
        raise ConfigError(
            "a source's position is empty, or has a line end or another control character", hint=_HINT, source=option
        )
    return StartPosition(StartKind.POSITION, position=position)


def _timestamp(option: str, text: str) -> datetime:
    try:
        timestamp = datetime.fromisoformat(text)
        return timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)
    except ValueError as e:
        raise ConfigError(
            "the time of a source's position is not in ISO 8601 format",
            hint="for example timestamp:2026-01-31T03:00 (UTC)",
            source=option,
        ) from e


def _initial_position(uid: str, source: Source | LocalSource, start: StartPosition) -> InitialPosition:
    if start.kind not in source.start_kinds:
        raise ConfigError(
            "the source does not support this kind of position",
            hint=f"it supports keep, {', '.join(sorted(source.start_kinds))}",
            uid=uid,
            position=start.kind.value,
            source=source.description,
        )
    try:
        is_earliest = start.kind is StartKind.EARLIEST
        return source.earliest_position() if is_earliest else source.initial_position(start)
    except StateflowError as e:
        e.add_facts(uid=uid)
        raise
