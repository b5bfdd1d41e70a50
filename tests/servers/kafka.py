"""Kafka, processes on loopback in KRaft mode, from the JARs of the set-up: a broker, and a cluster with proxies."""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ClusterMetadata, NewPartitions, NewTopic, OffsetSpec
from kafka_broker import BROKER_JARS, broker_command, format_command, write_settings

from tests.servers.listening import Certificate
from tests.servers.running import free_port, running
from tests.support.processes import wait_for

_TIMEOUT = 30.0


@dataclass
class Kafka:
    """A running broker.

    Attributes:
        address: as ``bootstrap_servers``.
        secure_address: the same, of the listener with TLS and a login; empty without one.
    """

    address: str
    secure_address: str = ""

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address})

    def create(self, topic: str, partitions: int = 2, **config: str) -> None:
        """Creates a topic; underscores in `config` are dots."""
        settings = {name.replace("_", "."): value for name, value in config.items()}
        (future,) = self.admin.create_topics([NewTopic(topic, partitions, 1, config=settings)]).values()
        future.result(_TIMEOUT)
        # The controller answers before the broker knows the topic.
        wait_for(lambda: topic in self.admin.list_topics(timeout=_TIMEOUT).topics, lambda: f"the topic {topic}")

    def add_partitions(self, topic: str, total: int) -> None:
        (future,) = self.admin.create_partitions([NewPartitions(topic, total)]).values()
        future.result(_TIMEOUT)
        # A producer does not send to a partition that the broker does not list yet.
        wait_for(
            lambda: len(self.admin.list_topics(topic, _TIMEOUT).topics[topic].partitions) == total,
            lambda: f"{total} partitions of {topic}",
        )

    def delete(self, topic: str) -> None:
        (future,) = self.admin.delete_topics([topic]).values()
        future.result(_TIMEOUT)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Deletes the records of a partition before an offset, as retention does."""
        (future,) = self.admin.delete_records([TopicPartition(topic, partition, before)]).values()
        future.result(_TIMEOUT)

    def send(self, topic: str, *records: bytes | Mapping[str, object] | None, partition: int = 0) -> None:
        """Sends records: values, or keyword arguments of `Producer.produce`; returns when they are stored."""
        producer = Producer({"bootstrap.servers": self.address, "linger.ms": 0})
        errors = []
        for record in records:
            given = record if isinstance(record, Mapping) else {"value": record}
            produced = {"partition": partition, "on_delivery": lambda error, _: errors.append(error), **given}
            producer.produce(topic, **produced)  # type: ignore[arg-type]
        assert producer.flush(_TIMEOUT) == 0 and not any(errors), errors

    def send_aborted(self, topic: str, value: bytes, partition: int = 0) -> None:
        """Sends a record in a transaction that is aborted."""
        producer = Producer({"bootstrap.servers": self.address, "transactional.id": f"aborted-{topic}"})
        producer.init_transactions(_TIMEOUT)
        producer.begin_transaction()
        producer.produce(topic, value, partition=partition)
        producer.flush(_TIMEOUT)
        producer.abort_transaction(_TIMEOUT)

    def ends(self, topic: str, partitions: Sequence[int]) -> list[int]:
        """The offset after the last record of each partition."""
        asked = {TopicPartition(topic, number): OffsetSpec.latest() for number in partitions}
        return [future.result().offset for future in self.admin.list_offsets(asked).values()]


@contextlib.contextmanager
def kafka_broker(folder: Path, tls: Certificate | None = None, password: str = "") -> Iterator[Kafka]:
    """An empty broker; the test is skipped if its JARs are not installed.

    Args:
        folder: of its files.
        tls: its certificate, for a second listener with the protocol SASL_SSL.
        password: of the user *me*, for this listener.
    """
    if not BROKER_JARS.exists():
        pytest.skip("no Kafka is installed: make setup downloads it if Maven Central can be reached")
    folder.mkdir(parents=True, exist_ok=True)
    port, controller, secure = free_port(), free_port(), f"127.0.0.1:{free_port()}" if tls else ""
    login = _login_settings((port, controller), secure, tls, password) if tls else {}
    properties = write_settings(folder, port, controller, login)
    subprocess.run(format_command(properties), check=True, capture_output=True, cwd=folder)
    with running(broker_command(properties), port, folder / "broker.log", folder):
        kafka = Kafka(f"127.0.0.1:{port}", secure)
        kafka.admin.list_topics(timeout=_TIMEOUT)
        yield kafka


def _login_settings(ports: tuple[int, int], secure: str, tls: Certificate, password: str) -> dict[str, str]:
    """Returns settings of a second listener, with TLS and a login.

    Args:
        ports: of the first listener and of the controller.
        secure: address of the second listener.
        tls: its certificate.
        password: of the user *me*.
    """
    first, added = f"PLAINTEXT://127.0.0.1:{ports[0]}", f"SASL_SSL://{secure}"
    return {
        "listeners": f"{first},{added},CONTROLLER://127.0.0.1:{ports[1]}",
        "advertised.listeners": f"{first},{added}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": (
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            f'username="broker" password="none" user_me="{password}";'
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(tls.key_file),
    }


_RESET = struct.pack("ii", 1, 0)
_BYTES = 1 << 16


class TcpProxy:
    """Listens on loopback and passes everything on.

    Args:
        upstream: the server's port on loopback.

    Attributes:
        port: its own port on loopback.
        loses_answers: whether bytes of the server are dropped instead of being passed on.
    """

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(self._listener.getsockname()[1])
        self.loses_answers = False
        self._open: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut(self) -> int:
        """Resets all connections; returns their number."""
        with self._lock:
            pairs = list(self._open)
        for pair in pairs:
            for side in pair:
                _shut(side)
        return len(pairs)

    def close(self) -> None:
        """Resets all connections, and listens no longer."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self.cut()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._upstream))
            except OSError:
                client.close()
                continue
            for side in (client, server):
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            thread = threading.Thread(target=self._connect, args=(client, server), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _connect(self, client: socket.socket, server: socket.socket) -> None:
        """Passes bytes on in both directions until one side ends."""
        pair = (client, server)
        with self._lock:
            self._open.add(pair)
        answers = threading.Thread(target=self._pass_on, args=(server, client, True), daemon=True)
        answers.start()
        self._pass_on(client, server, False)
        answers.join()
        with self._lock:
            self._open.remove(pair)
        for side in pair:
            side.close()

    def _pass_on(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while received := source.recv(_BYTES):
                if not (is_answer and self.loses_answers):
                    target.sendall(received)
        for side in (source, target):
            _shut(side)


def _shut(side: socket.socket) -> None:
    with contextlib.suppress(OSError):
        side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        side.shutdown(socket.SHUT_RDWR)


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
