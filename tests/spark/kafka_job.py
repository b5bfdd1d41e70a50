"""A job that reads Kafka through Spark, and the topic that it reads."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.servers.kafka import Kafka
from tests.spark.jobs import kafka as job_module
from tests.spark.processes import ModuleJob
from tests.support import folder_tables
from tests.support.processes import Running, wait_for

JARS = ",".join(sorted(map(str, (Path(sys.prefix) / "kafka").glob("*.jar"))))


class KafkaJob(ModuleJob):
    """The job of `tests.spark.jobs.kafka`, or of another module, on a topic of its own."""

    module: ModuleType = job_module

    def __init__(self, folder: Path, kafka: Kafka, **settings: object) -> None:
        if not JARS:
            pytest.skip("Spark's Kafka source is not installed: Maven Central may not have it for this Spark")
        self.kafka = kafka
        self.topic = f"orders-{folder.name}"
        self.sent: list[dict[str, Any]] = []
        given = {"job__brokers": kafka.address, "job__topics": self.topic, "spark__conf__spark.jars": JARS}
        super().__init__(folder, self.module, parallelism=2, **(given | settings))  # type: ignore[arg-type]

    def create(self, topic: str = "", partitions: int = 2) -> None:
        self.kafka.create(topic or self.topic, partitions)

    def send(self, count: int, *, topic: str = "", partition: int = 0) -> None:
        first = len(self.sent)
        orders = [
            {"id": n, "name": f"n{n % 3}", "price": n / 4 if n % 5 else None} for n in range(first, first + count)
        ]
        self.kafka.send(topic or self.topic, *[json.dumps(order).encode() for order in orders], partition=partition)
        self.sent += [{**order, "topic": topic or self.topic, "partition": partition} for order in orders]

    def numbered(self, first: int, *, topic: str = "", partition: int = 0) -> list[dict[str, Any]]:
        """Sends three orders with the numbers from `first` on; returns them as rows."""
        before, self.sent = self.sent, [{}] * first
        self.send(3, topic=topic, partition=partition)
        sent, self.sent = self.sent[first:], before
        return sent

    def send_at(self, partition: int, *seconds: int) -> None:
        """Sends an order with each of these event times, in seconds since 1970."""
        for second in seconds:
            self.sent.append({"id": len(self.sent), "name": "a"})
            value = json.dumps(self.sent[-1]).encode()
            self.kafka.send(self.topic, {"value": value, "timestamp": 1000 * second}, partition=partition)

    def watermarks(self) -> tuple[int | None, dict[str, int | None]]:
        """The watermark of the source, and those of its partitions by number."""
        (found,) = self.manifest["watermarks"]
        splits = {split["name"].rpartition("-")[2]: split["watermark"] for split in found["splits"]}
        return found["watermark"], splits

    def wait_for_rows(self, run: Running) -> None:
        """Waits until the table has all orders, and then no others."""

        def found() -> list[int]:
            assert run.poll() is None, str(run)
            has_table = (self.folder / "orders" / "versions").is_dir()
            return sorted(row["id"] for row in self.table_rows("orders")) if has_table else []

        expected = sorted(order["id"] for order in self.sent)
        wait_for(lambda: len(found()) >= len(expected), lambda: f"{expected} in {found()}: {run.errors}")
        assert found() == expected

    def check_rows(self) -> None:
        """Each order was read once, and the counts are those of all orders."""
        found = self.table_rows("orders")
        assert sorted(row["id"] for row in found) == [order["id"] for order in self.sent]
        by_id = {row["id"]: row for row in found}
        assert [{name: by_id[order["id"]][name] for name in order} for order in self.sent] == self.sent
        names = Counter(order["name"] for order in self.sent)
        counts = Counter((row["name"], row["count"]) for row in self.table_rows("counts"))
        assert counts == Counter((name, n) for name, total in names.items() for n in range(1, total + 1))
        files = DeltaTable(str(self.folder / "newest")).file_uris()
        newest = [(row["name"], row["count"]) for uri in files for row in pq.read_table(uri).to_pylist()]
        assert sorted(newest) == sorted(names.items())

    def table_rows(self, table: str) -> list[dict[str, Any]]:
        return folder_tables.rows(self.folder / table)
