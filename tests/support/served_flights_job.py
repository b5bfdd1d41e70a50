"""The job on Spark whose tables are in servers, and what must come out of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.servers.kafka_cluster import KafkaCluster
from tests.servers.postgres import Postgres
from tests.support.flights_job import FlightsJob
from tests.support.job_fixture import Row
from tests.support.kafka_records import committed
from tests.support.processes import spawn


@dataclass
class ServedFlightsJob(FlightsJob):
    cluster: KafkaCluster | None = None
    server: Postgres | None = None

    @classmethod
    def create(
        cls, folder: Path, settings: Mapping[str, object], cluster: KafkaCluster, server: Postgres
    ) -> ServedFlightsJob:
        cluster.create("legs")
        return cls(
            folder,
            {"job__brokers": cluster.address, "job__postgres": server.conninfo, **settings},
            job_name="flights_in_servers",
            launcher=spawn,
            variables=server.variables,
            cluster=cluster,
            server=server,
        )

    def rows(self, table: str) -> list[Row]:
        assert self.cluster is not None and self.server is not None
        if table == "legs":
            return [json.loads(message.value() or b"") for message in committed(self.cluster.address, table)]
        return self.server.rows(f"public.{table}")

    def leftovers(self) -> list[str]:
        # Staged rows are in the job root.
        return []
