"""Jobs whose tables are Delta's or Iceberg's, folders of files, in Kafka or in PostgreSQL, and what they must have."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch
from uuid import uuid4

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from pyiceberg.table import Table

from stateflow.storage import open_storage
from tests.servers.kafka import KafkaCluster
from tests.servers.postgres import Postgres
from tests.support import delta_tables, file_tables, root_files, staged_tables
from tests.support.flights_job import FlightsJob
from tests.support.job_fixture import KILLED, AccountsJob, JobFixture, Row, expected, multiset
from tests.support.processes import Ended, spawn

_JOB = "accounts_in_tables"
_CONTAINER = "az://bucket"


class FoldersJob(AccountsJob):
    @classmethod
    def create(cls, folder: Path, sink: str, **more: Any) -> Self:
        """A job without tables yet; `sink` is ``delta`` or ``files``, and further arguments as for `JobFixture`."""
        return cls(folder, {"job__sink": sink, **more.pop("settings", {})}, job_name=_JOB, **more)

    @property
    def upserts_totals(self) -> bool:
        return self.settings["job__sink"] == "delta"

    def rows(self, table: str) -> list[Row]:
        path, tables = self.table(table), str(self.settings.get("job__tables", ""))
        if self.settings["job__sink"] == "delta":
            return delta_tables.rows(path)
        return file_tables.rows(path, tables and f"{tables}/{table}")

    def check_clean(self) -> None:
        self.collect()
        root_files.check_no_orphans(self.root)
        for table in map(self.table, ("movements", "totals")):
            logged = b"".join(path.read_bytes() for path in table.glob("_*/*") if path.is_file())
            assert [path.name for path in table.glob("stateflow-*") if path.name.encode() not in logged] == []


def in_bucket(server: Path, **more: Any) -> dict[str, Any]:
    """Arguments for `JobFixture`: job root and tables are in the bucket ``bucket`` of `s3_server` in that folder."""
    return _elsewhere("s3://bucket", server / "data" / "bucket", **more)


def in_container(server: Path, **more: Any) -> dict[str, Any]:
    """Arguments for an `InContainer`: job root and tables are in the container ``bucket`` of `azure_server` there."""
    return _elsewhere(_CONTAINER, server / "copies", **more)


def _elsewhere(address: str, seen_at: Path, settings: Mapping[str, object] = {}, **more: Any) -> dict[str, Any]:
    places = {"root_folder": seen_at / "job", "address": f"{address}/job", "tables_folder": seen_at / "tables"}
    return {**more, **places, "settings": {**settings, "job__tables": f"{address}/tables"}}


@dataclass
class InContainer(JobFixture):
    """A job with job root and tables in a container of `azure_server`; the tests look at copies of its objects.

    Attributes:
        copied: version of each copied object by key.
    """

    copied: dict[str, str] = field(default_factory=dict)

    def run(self, failpoint: str = "", **settings: Any) -> Ended:
        ended = super().run(failpoint, **settings)
        self.copy()
        return ended

    def reach(self, failpoint: str, code: int = KILLED, **settings: Any) -> None:
        super().reach(failpoint, code, **settings)
        self.copy()

    def command(self, *arguments: str, failpoint: str = "", with_job: bool = False) -> Ended:
        ended = super().command(*arguments, failpoint=failpoint, with_job=with_job)
        self.copy()
        return ended

    def copy(self) -> None:
        """Makes the copies equal to the objects."""
        folder = self.root.parent
        with patch.dict(os.environ, self.variables):
            storage = open_storage(_CONTAINER)
            found = {blob.key: blob for blob in storage.list("")}
            for key in self.copied.keys() - found.keys():
                (folder / key).unlink()
            for key, blob in found.items():
                if self.copied.get(key) != blob.version:
                    path = folder / key
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(storage.get(key))
                    os.utime(path, (blob.modified_ms / 1000, blob.modified_ms / 1000))
        self.copied = {key: blob.version for key, blob in found.items()}


class ContainerJob(InContainer, FoldersJob):
    """The accounts, with Delta tables or folders of files."""


class ContainerFlightsJob(InContainer, FlightsJob):
    """The job on Spark, with Delta tables."""

    @property
    def files_done(self) -> int:
        self.copy()
        return super().files_done


class _ServedJob(AccountsJob):
    """Its tables are not in its folder."""

    def check_clean(self) -> None:
        self.collect()
        root_files.check_no_orphans(self.root)


class IcebergJob(_ServedJob):
    @classmethod
    def create(cls, folder: Path) -> IcebergJob:
        staged_tables.create_catalog(folder / "lake")
        settings = {"job__sink": "iceberg", "job__lake": str(folder / "lake")}
        return cls(folder / "job", settings, job_name=_JOB)

    def iceberg_table(self, name: str) -> Table:
        lake = Path(str(self.settings["job__lake"]))
        return staged_tables.catalog_in(lake).load_table(f"db.{name}")

    def rows(self, table: str) -> list[Row]:
        return staged_tables.iceberg_rows(self.iceberg_table(table))


def committed(address: str, topic: str) -> list[Message]:
    consumer = Consumer(
        {
            "bootstrap.servers": address, "group.id": f"r-{uuid4().hex}", "isolation.level": "read_committed",
            "auto.offset.reset": "earliest", "enable.partition.eof": True, "enable.auto.commit": False,
        }
    )  # fmt: skip
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(2)])
        found, ended = [], 0
        while ended < 2:
            message = consumer.poll(30)
            assert message is not None
            error = message.error()
            if error is None:
                found.append(message)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended += 1
        return found
    finally:
        consumer.close()


@dataclass
class KafkaJob(_ServedJob):
    cluster: KafkaCluster | None = None

    @classmethod
    def create(cls, cluster: KafkaCluster, **more: Any) -> KafkaJob:
        for topic in ("movements", "totals"):
            cluster.create(topic)
        settings = {"job__sink": "kafka", "job__brokers": cluster.address, **more.pop("settings", {})}
        return cls(settings=settings, job_name=_JOB, cluster=cluster, **more)

    def rows(self, table: str) -> list[Row]:
        assert self.cluster is not None
        return [json.loads(message.value() or b"") for message in committed(self.cluster.address, table)]

    def check_visible(self) -> None:
        logged = expected(self.delivered[: self.head.position])
        for table, wanted in (("movements", logged.movements), ("totals", logged.totals)):
            extra = multiset(self.rows(table)) - multiset(wanted)
            assert not extra, f"{table} has rows twice, or too early: {extra}"


@dataclass
class PostgresJob(_ServedJob):
    server: Postgres | None = None
    schema: str = "public"

    @property
    def upserts_totals(self) -> bool:
        return True

    @classmethod
    def create(cls, server: Postgres, schema: str, **more: Any) -> PostgresJob:
        """A job with an empty schema; further arguments as for `JobFixture`."""
        server.execute(f"CREATE SCHEMA {schema}")
        settings = {"job__sink": "postgres", "job__postgres": server.conninfo, "job__schema": schema}
        settings |= more.pop("settings", {})
        return cls(settings=settings, job_name=_JOB, variables=server.variables, server=server, schema=schema, **more)

    def rows(self, table: str) -> list[Row]:
        assert self.server is not None
        return self.server.rows(f"{self.schema}.{table}")

    def tokens(self) -> dict[str, int]:
        assert self.server is not None
        found = self.server.execute(
            f"SELECT split_part(application, '/', 2), token FROM {self.schema}.stateflow_tokens WHERE application <> ''"
        )
        return dict(found)


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
            job_name="small_flights",
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
