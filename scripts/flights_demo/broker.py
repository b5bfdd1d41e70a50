"""The demo's Kafka broker, and its topic of flights."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Self

import kafka_broker
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from flights_demo.airflow_home import free_port
from flights_demo.crash import DemoCheckFailed
from flights_demo.expected import Row
from stateflow_airflow.launch import Command, Launcher

TOPIC = "flights"
_PARTITIONS = 2
_STARTS_WITHIN = 60.0
_DELIVERS_WITHIN = 120.0


class Broker:
    """Starts a broker with an empty topic; a context manager that ends its process.

    Args:
        folder: for its data, log and settings.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._launcher = Launcher(folder / "process")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if launch := self._launcher.active():
            self._launcher.stop(launch)

    @property
    def address(self) -> str:
        """As ``bootstrap_servers``."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Starts the broker; `create_topic` waits for it.

        Raises:
            DemoCheckFailed: the broker's JARs are missing.
        """
        if not kafka_broker.BROKER_JARS.exists():
            raise DemoCheckFailed("no Kafka is installed: make setup downloads it if Maven Central can be reached")
        self._folder.mkdir(parents=True)
        settings = kafka_broker.write_settings(self._folder, self._port, free_port())
        subprocess.run(kafka_broker.format_command(settings), check=True, capture_output=True, cwd=self._folder)
        with self._launcher.hold_lock():
            command = Command(kafka_broker.broker_command(settings), os.environ)
            self._launcher.start(self._launcher.next_folder(), command)

    def create_topic(self) -> None:
        """Creates the topic as soon as the broker responds."""
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        admin.list_topics(timeout=_STARTS_WITHIN)
        (created,) = admin.create_topics([NewTopic(TOPIC, _PARTITIONS, 1)]).values()
        created.result(_STARTS_WITHIN)

    def send(self, flights: Iterable[Row]) -> None:
        """Sends flights as JSON; those of an aircraft stay in order.

        Raises:
            DemoCheckFailed: the broker did not confirm all of them.
        """
        producer = Producer({"bootstrap.servers": self.address, "acks": "all", "linger.ms": 50})
        for flight in flights:
            value = json.dumps({name: flight[name] for name in ("tailnum", "flight", "carrier", "origin", "dest")}
                               | {"time": flight["time"].isoformat()})  # fmt: skip
            while True:
                try:
                    producer.produce(TOPIC, value, key=flight["tailnum"])
                    break
                except BufferError:
                    producer.poll(1.0)
        if unsent := producer.flush(_DELIVERS_WITHIN):
            raise DemoCheckFailed(f"the broker did not confirm {unsent} flights in {_DELIVERS_WITHIN:.0f} s")
