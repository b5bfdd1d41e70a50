"""A Kafka cluster whose brokers can be killed and started again, with a proxy in front of each."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata, NewTopic
from kafka_broker import BROKER_JARS, broker_command, format_command, write_settings

from tests.servers.running import free_port
from tests.servers.tcp_proxy import TcpProxy

_TIMEOUT = 30.0
_STARTS_WITHIN = 90.0
_ANSWERS_WITHIN = 2.0
_PARTITIONS = 2


@dataclass
class KafkaNode:
    """One process of a cluster.

    Attributes:
        properties: the file with its settings.
        port: its listener for clients, which only the proxy connects to.
        proxy: what clients connect to.
    """

    properties: Path
    port: int
    proxy: TcpProxy
    _process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.properties.parent / "broker.log"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts the process; it may not answer yet."""
        assert not self.is_running
        with self.log.open("ab") as output:
            command = broker_command(self.properties)
            self._process = subprocess.Popen(command, stdout=output, stderr=output, cwd=self.properties.parent)

    def kill(self) -> None:
        """SIGKILL, and returns when the process has ended."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()


@dataclass
class KafkaCluster:
    """A cluster of one or two brokers. The first one is the controller as well, so leaders move from the second one.

    Attributes:
        folder: of the data.
    """

    folder: Path
    nodes: list[KafkaNode] = field(default_factory=list)

    @property
    def address(self) -> str:
        return ",".join(f"127.0.0.1:{node.proxy.port}" for node in self.nodes)

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address, "log_level": 0})

    def create(self, topic: str) -> None:
        """Creates a topic of two partitions, which has a replica on each broker."""
        (future,) = self.admin.create_topics([NewTopic(topic, _PARTITIONS, len(self.nodes))]).values()
        future.result(_TIMEOUT)

    def start(self) -> None:
        """Starts all processes that do not run, and returns when each is a broker and has all its replicas."""
        for node in self.nodes:
            if not node.is_running:
                node.start()
        self._wait(self._is_whole, "all brokers and replicas")

    def restart(self) -> None:
        for node in self.nodes:
            node.kill()
        self.start()

    def wait_led(self, by_second: bool) -> int:
        """Waits until the second broker leads partitions, or none; returns how many it leads.

        The controller gives partitions back to the broker that led them first.
        """
        self._wait(lambda: (2 in self.leaders()) == by_second, "other leaders")
        return self.leaders().count(2)

    def leaders(self) -> list[int]:
        """The leader of each partition of all topics."""
        topics = self._metadata().topics.values()
        return [partition.leader for topic in topics for partition in topic.partitions.values()]

    def _metadata(self) -> ClusterMetadata:
        """What a broker that answers knows: the client may ask one that is dead first."""
        ends = time.monotonic() + _STARTS_WITHIN
        while True:
            try:
                return self.admin.list_topics(timeout=_ANSWERS_WITHIN)
            except KafkaException:
                if time.monotonic() > ends:
                    raise

    def cut(self) -> int:
        """Resets all connections of clients; returns their number."""
        return sum(node.proxy.cut() for node in self.nodes)

    def lose_answers(self, lost: bool) -> None:
        """Drops what brokers answer from now on; or ends that, and resets all connections."""
        for node in self.nodes:
            node.proxy.loses_answers = lost
        if not lost:
            self.cut()

    def _is_whole(self) -> bool:
        for node in self.nodes:
            assert node.is_running, f"a broker ended:\n{node.log.read_text(errors='replace')[-3000:]}"
        found = self._metadata()
        partitions = [p for topic in found.topics.values() for p in topic.partitions.values()]
        return len(found.brokers) == len(self.nodes) and all(
            p.leader > 0 and len(p.isrs) == len(p.replicas) for p in partitions
        )

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        ends = time.monotonic() + _STARTS_WITHIN
        while not condition():
            logs = [node.log.read_text(errors="replace")[-2000:] for node in self.nodes]
            assert time.monotonic() < ends, f"waited for {what}: {self.leaders()}\n{logs}"
            time.sleep(0.05)


@contextlib.contextmanager
def kafka_cluster(folder: Path, brokers: int) -> Iterator[KafkaCluster]:
    """An empty cluster of one or two brokers; the test is skipped if its JARs are not installed."""
    if not BROKER_JARS.exists():
        pytest.skip("no Kafka is installed: make setup downloads it if Maven Central can be reached")
    controller = free_port()
    cluster = KafkaCluster(folder)
    try:
        for number in range(1, brokers + 1):
            cluster.nodes.append(_node(folder / f"broker-{number}", number, controller, brokers))
        cluster.start()
        yield cluster
    finally:
        for node in cluster.nodes:
            if node.is_running:
                node.kill()
            node.proxy.close()


def _node(folder: Path, number: int, controller: int, brokers: int) -> KafkaNode:
    folder.mkdir(parents=True)
    port, internal = free_port(), free_port()
    proxy = TcpProxy(port)
    listeners = f"CLIENTS://127.0.0.1:{port},INTERNAL://127.0.0.1:{internal}"
    copies = str(brokers)
    settings = {
        "process.roles": "broker,controller" if number == 1 else "broker",
        "node.id": str(number),
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}" if number == 1 else listeners,
        "advertised.listeners": f"CLIENTS://127.0.0.1:{proxy.port},INTERNAL://127.0.0.1:{internal}",
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "INTERNAL",
        "offsets.topic.replication.factor": copies,
        "offsets.topic.num.partitions": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.num.partitions": copies,
        # A broker that was killed is registered again after its old session.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        "replica.lag.time.max.ms": "5000",
        "leader.imbalance.check.interval.seconds": "1",
        "leader.imbalance.per.broker.percentage": "0",
    }
    properties = write_settings(folder, port, controller, settings)
    subprocess.run(format_command(properties), check=True, capture_output=True, cwd=folder)
    return KafkaNode(properties, port, proxy)
