"""Asks Kafka for partitions and offsets, without Spark."""

from __future__ import annotations

import logging
import queue
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING

from stateflow.clock import epoch_milliseconds
from stateflow.connectors.kafka.offsets import Partition
from stateflow.errors import ConfigError, EnvironmentUnsupported, StorageError

if TYPE_CHECKING:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import OffsetSpec

log = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 30.0
KEEP_BROKERS = {"metadata.recovery.strategy": "none"}
"""Option of librdkafka. By default, version 2.16 replaces its connections when none is left, and may then neither
answer a call of a transaction nor observe its timeout."""


_BROKER = re.compile(r"([A-Za-z_]+://)?(\[[0-9A-Fa-f:.%]+\]|[0-9A-Za-z._-]+):[0-9]{1,5}")


def check_brokers(bootstrap_servers: str) -> str:
    """Returns the addresses of brokers. Raises ConfigError unless each has a host and a port.

    The clients of Java and C refuse other texts late and differently: an empty one after minutes, as if no broker
    answered.
    """
    wrong = [part.strip() for part in bootstrap_servers.split(",") if not _BROKER.fullmatch(part.strip())]
    if wrong:
        raise ConfigError(
            "an address of a Kafka broker is empty, or has no host or no port",
            hint="pass HOST:PORT, several separated by commas; a variable or parameter that is not set is empty",
            bootstrap_servers=bootstrap_servers,
        )
    return bootstrap_servers


class NotAnswered(Exception):
    """A call of the client did not return although its timeout has elapsed."""


@dataclass(frozen=True)
class Topics:
    """The topics that a source reads: by name, or all whose whole name matches a regular expression."""

    names: tuple[str, ...] = ()
    pattern: str = ""

    def __str__(self) -> str:
        return f"pattern {self.pattern}" if self.pattern else ",".join(self.names)

    def matches(self, topic: str) -> bool:
        """Returns whether the source reads a topic."""
        return bool(re.fullmatch(self.pattern, topic)) if self.pattern else topic in self.names


class KafkaClient:
    """Answers questions about the offsets of one Kafka cluster.

    Args:
        bootstrap_servers: addresses of brokers, separated by commas.
        options: further options of librdkafka.

    Raises:
        EnvironmentUnsupported: its package is not installed.
    """

    def __init__(self, bootstrap_servers: str, options: Mapping[str, str]) -> None:
        if find_spec("confluent_kafka") is None:
            raise EnvironmentUnsupported(
                "offsets in Kafka cannot be read without confluent-kafka",
                hint="install it on the driver, and in Airflow for plans: pip install 'stateflow[kafka]'",
            )
        from confluent_kafka.admin import AdminClient

        self._address = bootstrap_servers
        # With a logger, because librdkafka would otherwise print to standard error.
        self._admin = AdminClient({**KEEP_BROKERS, "bootstrap.servers": bootstrap_servers, **options}, logger=log)

    def partitions(self, topics: Topics) -> list[Partition]:
        """Returns the existing partitions of topics.

        Raises:
            StorageError: no broker answered.
            ConfigError: a topic that was named does not exist.
        """
        found = [partition for partition in self._listed() if topics.matches(partition[0])]
        missing = sorted(set(topics.names) - {name for name, _ in found})
        if missing:
            raise ConfigError(
                "a topic does not exist",
                hint="create it, or correct its name; a pattern may match no topic yet",
                topics=missing,
                brokers=self._address,
            )
        return sorted(found)

    def existing(self, partitions: Collection[Partition]) -> list[Partition]:
        """Returns those of the partitions that exist. Raises StorageError."""
        return sorted(set(self._listed()) & set(partitions))

    def earliest(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Returns the first offset of each partition. Raises StorageError."""
        from confluent_kafka.admin import OffsetSpec

        return self._offsets(partitions, OffsetSpec.earliest())

    def ends(self, partitions: Sequence[Partition], *, committed: bool = True) -> dict[Partition, int]:
        """Returns the offset after the last record of each partition. Raises StorageError.

        Args:
            committed: whether records of open transactions, and what follows them, do not count.
        """
        from confluent_kafka.admin import OffsetSpec

        return self._offsets(partitions, OffsetSpec.latest(), committed=committed)

    def at(self, partitions: Sequence[Partition], time: datetime) -> dict[Partition, int]:
        """Returns the offset of the first record of each partition that is not older; its end if there is none.

        Raises StorageError.
        """
        from confluent_kafka.admin import OffsetSpec

        found = self._offsets(partitions, OffsetSpec.for_timestamp(epoch_milliseconds(time)))
        later = [partition for partition, offset in found.items() if offset < 0]
        return {**found, **(self.ends(later) if later else {})}

    def _listed(self) -> list[Partition]:
        with self._translated_errors():
            topics = self._admin.list_topics(timeout=_TIMEOUT_SECONDS).topics
        return [(name, number) for name, topic in topics.items() for number in topic.partitions]

    def _offsets(
        self, partitions: Sequence[Partition], wanted: OffsetSpec, *, committed: bool = True
    ) -> dict[Partition, int]:
        from confluent_kafka import IsolationLevel, TopicPartition

        if not partitions:
            return {}
        with self._translated_errors():
            asked = {TopicPartition(topic, number): wanted for topic, number in partitions}
            isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
            futures = self._admin.list_offsets(asked, isolation_level=isolation, request_timeout=_TIMEOUT_SECONDS)
            return {(each.topic, each.partition): future.result().offset for each, future in futures.items()}

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as e:
            raise StorageError(
                "Kafka did not answer a question about offsets",
                hint="check the addresses, the network and the login; a new run continues from the last checkpoint",
                brokers=self._address,
                reason=str(e)[:500],
            ) from e


def within_timeout(call: Callable[[], object], seconds: float) -> None:
    """Makes a call of the client, which may not return although its timeout has elapsed.

    Raises:
        KafkaException: the call raised it.
        NotAnswered: the call did not return within `seconds`. Its thread, and the client, exist until the process ends.
    """
    from confluent_kafka import KafkaException

    answer: queue.SimpleQueue[KafkaException | None] = queue.SimpleQueue()

    def answered() -> None:
        try:
            call()
        except KafkaException as e:
            answer.put(e)
        else:
            answer.put(None)

    threading.Thread(target=answered, name="stateflow-kafka-call", daemon=True).start()
    try:
        failed = answer.get(timeout=seconds)
    except queue.Empty:
        raise NotAnswered from None
    if failed is not None:
        raise failed
