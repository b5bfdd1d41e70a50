"""Positions of a partitioned source, and the splits between two of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from stateflow.connectors.partition_offsets import gaps_after, gaps_between, shorten_texts
from stateflow.types.decoders import json_decoder

Offsets = Mapping[str, int]
"""The offset of the next row of each partition, by name of the partition."""

LARGEST_OFFSET = 2**63 - 1
_decoder = json_decoder(dict[str, int])


@dataclass(frozen=True)
class Split:
    """A part of a partition that one task reads.

    Attributes:
        partition: name of the partition.
        start: offset of its first row.
        end: offset after its last row.
        info: a text from `PartitionedSource.plan_splits` for `read_split`, such as the address of a page.
    """

    partition: str
    start: int
    end: int
    info: str = ""


def parse_position(text: str) -> dict[str, int]:
    """Returns the offsets of a position. Raises ValueError if it is not one."""
    try:
        found = _decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as e:
        raise ValueError(f"not of the form {{partition: offset}}: {e}") from e
    wrong = find_offset_error(found)
    if wrong:
        raise ValueError(wrong)
    return found


def format_position(offsets: Offsets) -> str:
    """Returns offsets as a position: JSON with sorted names."""
    return msgspec.json.encode(dict(sorted(offsets.items()))).decode()


def find_offset_error(offsets: object) -> str:
    """Returns the error of invalid offsets; empty if they are valid."""
    if not isinstance(offsets, Mapping):
        return f"offsets are a {type(offsets).__name__}"
    for partition, offset in offsets.items():
        if not isinstance(partition, str) or not partition:
            return f"the name of a partition is {partition!r}"
        if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= LARGEST_OFFSET:
            return f"partition {partition!r} has the offset {offset!r}"
    return ""


@dataclass(frozen=True)
class Available:
    """The offsets that a source has.

    Attributes:
        starts: the first offset of each partition that still exists.
        ends: the offset after the last row of each partition.
    """

    starts: Offsets
    ends: Offsets

    @property
    def invalid(self) -> str:
        """Returns which partition ends before it begins; empty if none does."""
        wrong = [name for name, end in self.ends.items() if end < self.start_of(name)]
        return f"partition {wrong[0]!r} ends before it begins" if wrong else ""

    def start_of(self, partition: str) -> int:
        """Returns the first offset of a partition; 0 if the source does not name it."""
        return self.starts.get(partition, 0)

    @property
    def earliest(self) -> dict[str, int]:
        """The position before all rows."""
        return {name: self.start_of(name) for name in self.ends}

    def until(self, target: Offsets, position: Offsets) -> Available:
        """Returns the same without what has arrived since a target was read.

        Args:
            target: the ends at that time.
            position: the current position, whose partitions are kept.
        """
        ends = {
            name: min(end, target.get(name, position.get(name, end)))
            for name, end in self.ends.items()
            if name in target or name in position
        }
        return Available(self.starts, ends)


def skip_lost(position: Offsets, available: Available) -> dict[str, int]:
    """Returns the position to continue from: of what exists, after what is lost; new partitions from their start."""
    lost = {gap.partition for gap in gaps_after(position, available.earliest, available.ends)}
    return {
        name: available.start_of(name) if name in lost else position.get(name, available.start_of(name))
        for name in available.ends
    }


def describe_lost_rows(start: Offsets, end: Offsets, available: Available) -> list[str]:
    """Returns texts on the rows between two positions that are lost."""
    gaps = gaps_between(start, end, available.earliest, available.ends)
    return shorten_texts([gap.describe(gap.partition) for gap in gaps])


def limit_end(start: Offsets, ends: Offsets, limit: int | None) -> dict[str, int]:
    """Returns the position after a batch.

    Each partition that has new rows makes progress, and the rest of the limit is divided by what they have. So a
    partition with many rows does not hold back another one.

    Args:
        start: the position before the batch, with all partitions.
        ends: the ends of the partitions.
        limit: largest number of offsets in the batch, unless more partitions have rows; None for no limit.
    """
    new = {name: end - start[name] for name, end in ends.items() if end > start[name]}
    total = sum(new.values())
    if limit is None or total <= limit:
        return dict(start) | {name: ends[name] for name in new}
    spare, more = max(0, limit - len(new)), total - len(new)
    taken = {name: 1 + (count - 1) * spare // more if more else 1 for name, count in new.items()}
    return dict(start) | {name: start[name] + count for name, count in taken.items()}


def splits_between(start: Offsets, end: Offsets, size: int | None) -> list[Split]:
    """Returns the splits between two positions, ordered by partition and offset.

    Args:
        start: the position before; a partition that it lacks has no rows before `end`.
        end: the position after.
        size: largest number of offsets of a split; None for one split per partition.
    """
    found = []
    for name, last in sorted(end.items()):
        first = start.get(name, last)
        step = size or max(1, last - first)
        found += [Split(name, at, min(at + step, last)) for at in range(first, last, step)]
    return found


def find_uncovered(splits: Iterable[Split], start: Offsets, end: Offsets) -> str:
    """Returns which offsets between two positions are not in exactly one of the splits; empty if all are."""
    reached: dict[str, int] = {}
    for split in sorted(splits, key=lambda each: (each.partition, each.start, each.end)):
        at = reached.get(split.partition, start.get(split.partition, split.end))
        if split.start != at or split.end < at:
            return f"partition {split.partition!r} is planned to {at}, and the next split is {split}"
        reached[split.partition] = split.end
    for name, last in sorted(end.items()):
        at = reached.get(name, start.get(name, last))
        if at != max(last, start.get(name, last)):
            return f"partition {name!r} is planned to {at}, and the batch ends at {last}"
    more = sorted(reached.keys() - end.keys())
    return f"partition {more[0]!r} is not part of the batch" if more else ""
