"""Nexmark's events as records of a Kafka topic: JSON as Nexmark's own table ``kafka`` has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

import msgspec
import pyarrow as pa

from benchmarks.kafka_server import Broker
from benchmarks.nexmark.generate import Slices
from benchmarks.nexmark.generator import generate

_TYPES = ("person", "auction", "bid")


def produce(slices: Slices, servers: str, topic: str) -> None:
    """Sends the events in order to the partitions of a topic in turn; returns when all are stored."""
    broker = Broker(servers)
    for first in range(0, slices.events, slices.events_per_file):
        count = min(slices.events_per_file, slices.events - first)
        broker.send(topic, records(generate(slices.stream, first, count)))


def records(events: pa.Table) -> Iterator[bytes]:
    """Yields a JSON object for each event: its type, and an object `person`, `auction` or `bid`."""
    for event in events.to_pylist():
        kind = _TYPES[event["event_type"]]
        own = {
            name.removeprefix(f"{kind}_"): event[name] for name in events.column_names if name.startswith(f"{kind}_")
        }
        fields = {**own, "dateTime": event["dateTime"], "extra": event["extra"]}
        yield msgspec.json.encode({"event_type": event["event_type"], kind: _texts(fields)})


def _texts(fields: Mapping[str, str | int | datetime]) -> dict[str, str | int]:
    """With times as SQL writes them, which is what Flink's JSON format reads."""
    return {name: _sql(value) if isinstance(value, datetime) else value for name, value in fields.items()}


def _sql(time: datetime) -> str:
    return time.isoformat(" ", "milliseconds")
