"""A job whose tables are topics, and what they must have."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.servers.kafka_cluster import KafkaCluster
from tests.support import root_files
from tests.support.job_fixture import AccountsJob, Row, expected, multiset
from tests.support.kafka_records import committed


@dataclass
class KafkaJob(AccountsJob):
    job_name: str = "accounts_in_kafka"
    cluster: KafkaCluster | None = None

    @classmethod
    def create(cls, cluster: KafkaCluster, **more: Any) -> KafkaJob:
        for topic in ("movements", "totals"):
            cluster.create(topic)
        settings = {"job__brokers": cluster.address, **more.pop("settings", {})}
        return cls(settings=settings, cluster=cluster, **more)

    def rows(self, table: str) -> list[Row]:
        assert self.cluster is not None
        return [json.loads(message.value() or b"") for message in committed(self.cluster.address, table)]

    def check_visible(self) -> None:
        logged = expected(self.delivered[: self.head.position])
        for table, wanted in (("movements", logged.movements), ("totals", logged.totals)):
            extra = multiset(self.rows(table)) - multiset(wanted)
            assert not extra, f"{table} has rows twice, or too early: {extra}"

    def check_clean(self) -> None:
        self.collect()
        root_files.check_no_orphans(self.root)
