"""Offsets in partitions of a source: new rows after a position, lost rows, errors for positions. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from stateflow.errors import ConfigError

P = TypeVar("P", str, tuple[str, int])
"""Key of a partition: its name, or its topic and number."""

_SHOWN = 5


@dataclass(frozen=True)
class Gap(Generic[P]):
    """Rows of one partition after a position that the source no longer has.

    Attributes:
        start: the position.
        end: the first offset after it that exists; below `start` if the partition was created again, and None if it
            no longer exists.
    """

    partition: P
    start: int
    end: int | None

    def describe(self, name: str, counted: str = "") -> str:
        """Returns a text for users.

        Args:
            name: the partition.
            counted: what offsets count, such as ``records``; empty if they need not be consecutive.
        """
        if self.end is None:
            return f"{name}: no longer exists; the position is {self.start}"
        if self.end < self.start:
            return f"{name}: ends at {self.end}, before the position {self.start}"
        rows = f"{self.end - self.start} {counted}" if counted else "offsets"
        return f"{name}: {rows} [{self.start}, {self.end})"


def gaps_after(position: Mapping[P, int], earliest: Mapping[P, int], ends: Mapping[P, int]) -> Iterator[Gap[P]]:
    """Yields the lost rows after a position.

    Args:
        position: the offsets of the next rows to read.
        earliest: the first offset of each partition that exists.
        ends: the offset after the last row of each partition that exists.
    """
    for partition, start in sorted(position.items()):
        if partition not in earliest:
            yield Gap(partition, start, None)
        elif earliest[partition] > start:
            yield Gap(partition, start, earliest[partition])
        elif ends[partition] < start:
            yield Gap(partition, start, ends[partition])


def gaps_between(
    start: Mapping[P, int], end: Mapping[P, int], earliest: Mapping[P, int], ends: Mapping[P, int]
) -> Iterator[Gap[P]]:
    """Yields the lost rows between two positions.

    Args:
        start: the offsets of the first rows. Where a partition began that it does not have is unknown.
        end: the offsets after the last rows.
        earliest, ends: as for `gaps_after`.
    """
    for partition, after in sorted(end.items()):
        first = start.get(partition, after)
        if first == after:
            continue
        found = list(gaps_after({partition: first}, earliest, ends))
        if not found and ends[partition] < after:
            found = [Gap(partition, after, ends[partition])]
        yield from found


def shorten_texts(texts: Sequence[str]) -> list[str]:
    """Returns texts for an error, one per partition, of which there may be thousands."""
    more = len(texts) - _SHOWN
    return [*texts[:_SHOWN], *([f"and {more} more partitions"] if more > 0 else [])]


def has_new_rows(position: Mapping[P, int], ends: Mapping[P, int]) -> bool | None:
    """Returns whether there are rows after a position; None if the position has other partitions.

    Args:
        position: the offsets of the next rows to read.
        ends: the offset after the last row of each partition that exists.
    """
    if position.keys() != ends.keys():
        return None
    if any(ends[partition] < offset for partition, offset in position.items()):
        return None  # the partition was created again
    return any(ends[partition] > offset for partition, offset in position.items())


def count_waiting(position: Mapping[P, int], earliest: Mapping[P, int], ends: Mapping[P, int]) -> int:
    """Returns the number of offsets after a position that the source still has.

    A partition that the position does not have is read from its first offset, and one that was created again, and
    ends before the position, has none.

    Args:
        position: the offsets of the next rows to read.
        earliest: the first offset of each partition that exists.
        ends: the offset after the last row of each partition that exists.
    """
    firsts = {partition: earliest.get(partition, 0) for partition in ends}
    return sum(max(0, end - max(firsts[p], position.get(p, 0))) for p, end in ends.items())


def position_error(kind: str, hint: str, source: str, position: str, error: Exception) -> ConfigError:
    """Returns the error for a position that a source cannot parse.

    Args:
        kind: the kind of source, such as ``a Kafka source``.
        hint: what a position looks like.
        source: description of the source.
        position: the position; its beginning is a fact of the error.
        error: why it cannot be parsed.
    """
    return ConfigError(
        f"the position is not valid for {kind}",
        hint=hint,
        source=source,
        position=position[:500],
        reason=str(error)[:500],
    )
