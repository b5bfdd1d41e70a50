"""Positions of a Kafka source, as Spark writes them. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping

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
