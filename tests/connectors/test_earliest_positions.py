"""Restores to the earliest position of sources, also of those that begin elsewhere in a new job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from stateflow import DeltaSource, KafkaSource
from stateflow.api.source import FROM_START, CollectionSource
from stateflow.connectors.kafka.client import Partition, Topics
from stateflow.errors import ConfigError
from tests.connectors.partitioned_lists import Item, Lists, items_of
from tests.support.errors import raises


class FakeClient:
    """Partitions with their first offsets."""

    def partitions(self, topics: Topics) -> list[Partition]:
        return [("a", 0), ("a", 1)]

    def earliest(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        return dict(zip(partitions, (7, 0), strict=True))


class FakeKafka(KafkaSource):
    def _client(self) -> Any:
        return FakeClient()


def test_a_source_whose_new_job_begins_at_its_start_is_read_as_in_a_new_job() -> None:
    kafka = FakeKafka("nowhere:1", topics="a", schema=Item)
    for source in (CollectionSource([], Item), Lists({}), DeltaSource("/t", schema=Item), kafka):
        assert source.earliest_position().offset == FROM_START


@pytest.mark.parametrize("start", ["latest", {"a": {0: 9, 1: 9}}], ids=["latest", "offsets"])
def test_a_source_that_begins_elsewhere_in_a_new_job_returns_its_first_offsets(start: Any) -> None:
    source = FakeKafka("nowhere:1", topics="a", schema=Item, start=start)
    assert source.earliest_position().offset == '{"a":{"0":7,"1":0}}'
    lists = Lists({"a": items_of("a", 5), "b": items_of("b", 2)}, start="latest")
    lists.first = {"a": 3}
    assert lists.earliest_position().offset == '{"a":3,"b":0}'


@pytest.mark.parametrize("start", ["latest", 3])
def test_a_delta_source_that_begins_elsewhere_is_refused(start: Any) -> None:
    with raises(ConfigError, source="DeltaSource[rows:/t]", start=str(start)):
        DeltaSource("/t", schema=Item, start=start).earliest_position()
