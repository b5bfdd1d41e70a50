"""Transactions of the Kafka sink when another broker becomes responsible for their group, or connections are cut."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stateflow.connectors.kafka.client import Connection
from stateflow.connectors.kafka.formats import KafkaRecord
from stateflow.connectors.kafka.sink import Transactions
from tests.servers.kafka import kafka_cluster

pytestmark = pytest.mark.slow(reason="starts a Kafka broker")

_GROUPS = 6
"""So many that both brokers have some of them."""


def test_a_token_is_read_and_committed_after_its_group_has_moved_to_another_broker(tmp_path: Path) -> None:
    with kafka_cluster(tmp_path, brokers=2) as cluster:
        cluster.create("t")
        connection = Connection(cluster.address, {})
        sinks = [Transactions(connection, f"group-{n}", "t", {}) for n in range(_GROUPS)]
        assert [sink.commit(sink.read_token(), 1, ()) for sink in sinks] == [True] * _GROUPS
        cluster.nodes[1].kill()
        cluster.wait_led(by_second=False)
        assert [sink.read_token() for sink in sinks] == [1] * _GROUPS
        cluster.start()
        cluster.wait_led(by_second=True)
        assert [sink.read_token() for sink in sinks] == [1] * _GROUPS
        for sink in sinks:
            # As the driver: a producer whose call does not return is replaced.
            while not sink.commit(1, 2, ()):
                assert sink.read_token() == 1
        assert [sink.read_token() for sink in sinks] == [2] * _GROUPS


def test_a_transaction_is_committed_although_all_connections_are_cut_in_the_middle(tmp_path: Path) -> None:
    with kafka_cluster(tmp_path, brokers=1) as cluster:
        cluster.create("t")
        sink = Transactions(Connection(cluster.address, {}), "group", "t", {})

        def records() -> Iterator[KafkaRecord]:
            yield KafkaRecord("t", b"key", b"before", None, 0)
            assert cluster.cut() > 0
            yield KafkaRecord("t", b"key", b"after", None, 0)

        for token in range(1, 6):
            assert sink.commit(sink.read_token(), token, records())
        assert sink.read_token() == 5
