"""Restores to the earliest position of sources, also of those that begin elsewhere in a new job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from stateflow import DeltaSource, KafkaSource, PartitionedSource, Split
from stateflow.api.source import FROM_START, CollectionSource
from stateflow.connectors.kafka.client import Partition, Topics
from stateflow.errors import ConfigError
from tests.support.errors import raises


class Row(msgspec.Struct):
    number: int


class Parts(PartitionedSource):
    """Two partitions, one of which has lost its first rows."""

    @property
    def description(self) -> str:
        return "Parts"

    def starts(self) -> Mapping[str, int]:
        return {"a": 3}

    def ends(self) -> Mapping[str, int]:
        return {"a": 5, "b": 2}

    def read_split(self, split: Split) -> Iterator[object]:
        yield from (Row(number) for number in range(split.start, split.end))


class FakeClient:
    """Partitions with their first offsets."""

    def partitions(self, topics: Topics) -> list[Partition]:
        return [("a", 0), ("a", 1)]

    def earliest(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        return dict(zip(partitions, (7, 0), strict=True))


class FakeKafka(KafkaSource):
    """A source whose client is a fake."""

    def _client(self) -> Any:
        return FakeClient()


def test_a_source_whose_new_job_begins_at_its_start_is_read_as_in_a_new_job() -> None:
    kafka = FakeKafka("nowhere:1", topics="a", schema=Row)
    for source in (CollectionSource([], Row), Parts(schema=Row), DeltaSource("/t", schema=Row), kafka):
        assert source.earliest_position().offset == FROM_START


@pytest.mark.parametrize("start", ["latest", {"a": {0: 9, 1: 9}}], ids=["latest", "offsets"])
def test_kafka_returns_its_first_offsets_if_a_new_job_begins_elsewhere(start: Any) -> None:
    source = FakeKafka("nowhere:1", topics="a", schema=Row, start=start)
    assert source.earliest_position().offset == '{"a":{"0":7,"1":0}}'


def test_a_partitioned_source_returns_its_starts_if_a_new_job_begins_at_the_end() -> None:
    assert Parts(schema=Row, start="latest").earliest_position().offset == '{"a":3,"b":0}'


@pytest.mark.parametrize("start", ["latest", 3])
def test_a_delta_source_that_begins_elsewhere_is_refused(start: Any) -> None:
    with raises(ConfigError, source="DeltaSource[rows:/t]", start=str(start)):
        DeltaSource("/t", schema=Row, start=start).earliest_position()
