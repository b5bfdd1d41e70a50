"""Positions of a Kafka source, as Spark writes them, and what retention has removed since. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from stateflow.types.decoders import json_decoder

Partition = tuple[str, int]
"""Topic and number of a partition."""
Offsets = Mapping[Partition, int]
"""The offset of the next record, by partition."""

_decoder = json_decoder(dict[str, dict[str, int]])


def parse_offsets(text: str) -> dict[Partition, int]:
    """Returns the offsets in a line of Spark's offset log. Raises ValueError if it is not a position in Kafka."""
    try:
        topics = _decoder.decode(text)
    except (msgspec.DecodeError, RecursionError) as e:
        raise ValueError(f"not of the form {{topic: {{partition: offset}}}}: {e}") from e
    found = {}
    for topic, partitions in topics.items():
        for number, offset in partitions.items():
            if not (number.isascii() and number.isdigit()) or offset < 0:
                raise ValueError(f"partition {number!r} of topic {topic!r} has the offset {offset}")
            found[topic, int(number)] = offset
    return found


def format_offsets(offsets: Offsets) -> str:
    """Returns offsets as Spark writes them."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, number), offset in sorted(offsets.items()):
        topics.setdefault(topic, {})[str(number)] = offset
    return json.dumps(topics, separators=(",", ":"))


@dataclass(frozen=True)
class Gap:
    """Records of one partition after a position that Kafka no longer has.

    Attributes:
        start: the position.
        end: the first offset after it that exists; below `start` if the partition was created again, and None if it
            no longer exists.
    """

    topic: str
    partition: int
    start: int
    end: int | None

    def __str__(self) -> str:
        if self.end is None:
            return f"{self.topic}-{self.partition}: no longer exists; the position is {self.start}"
        if self.end < self.start:
            return f"{self.topic}-{self.partition}: ends at {self.end}, before the position {self.start}"
        return f"{self.topic}-{self.partition}: {self.end - self.start} records [{self.start}, {self.end})"


def gaps_after(position: Offsets, earliest: Offsets, ends: Offsets) -> Iterator[Gap]:
    """Yields what is lost after a position.

    Args:
        position: the offsets of the next records to read.
        earliest: the first offset of each partition that exists.
        ends: the offset after the last record of each partition that exists.
    """
    for (topic, number), start in sorted(position.items()):
        partition = topic, number
        if partition not in earliest:
            yield Gap(topic, number, start, None)
        elif earliest[partition] > start:
            yield Gap(topic, number, start, earliest[partition])
        elif ends[partition] < start:
            yield Gap(topic, number, start, ends[partition])


def has_new_records(position: Offsets, ends: Offsets) -> bool | None:
    """Returns whether there are records after a position; None if the partitions are not those of the position.

    Args:
        position: the offsets of the next records to read.
        ends: the offset after the last record of each partition that exists.
    """
    if not position or position.keys() != ends.keys():
        return None
    if any(ends[partition] < offset for partition, offset in position.items()):
        return None  # the partition was created again
    return any(ends[partition] > offset for partition, offset in position.items())
