"""The names of datasets, by OpenLineage's conventions, and the texts that events must not have."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from openlineage.client.naming import dataset as naming

from stateflow import DeltaSink, DeltaSource, FileSink, FileSource, IcebergSink, KafkaSink, KafkaSource, PostgresSink
from stateflow.api.datasets import Dataset, path_name, without_credentials
from stateflow.api.graph import Graph
from stateflow.api.source import spark_position
from stateflow.checkpoint.log.documents import NOT_BEGUN, SourcePosition
from stateflow.connectors.batch_table import BatchTable
from stateflow.connectors.spark import SparkSource
from stateflow.lineage.events import JobDatasets


class Row(msgspec.Struct):
    id: int


def _name(of: naming.DatasetNaming) -> tuple[str, str]:
    return of.get_namespace(), of.get_name()


# Of the account, the container and the name that the convention separates.
_ACCOUNT = "lake"
_PATHS: dict[str, tuple[str, str]] = {
    "/data/events/": _name(naming.LocalFileSystem("/data/events")),
    "file:///data/my%20events": _name(naming.LocalFileSystem("/data/my events")),
    "/data/events/day=*/part-?.json": _name(naming.LocalFileSystem("/data/events")),
    "S3://bucket/tables/sales": _name(naming.S3("bucket", "tables/sales")),
    "s3://bucket/tables/sales": _name(naming.S3("bucket", "tables/sales")),
    "s3a://key:secret@bucket/tables/sales/": _name(naming.S3("bucket", "tables/sales")),
    "gs://bucket/tables/{a,b}": _name(naming.GCS("bucket", "tables")),
    "hdfs://namenode:8020/tables/sales": _name(naming.HDFS("namenode", "8020", "/tables/sales")),
    "abfss://box@lake.dfs.core.windows.net/tables": (f"abfss://box@{_ACCOUNT}.dfs.core.windows.net", "/tables"),
    "az://box/tables?sig=secret": (f"abfss://box@{_ACCOUNT}.dfs.core.windows.net", "/tables"),
}


@pytest.mark.parametrize("address", _PATHS)
def test_a_path_has_the_name_of_the_convention(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", _ACCOUNT)
    assert path_name(address) == _PATHS[address]


def _only(datasets: Sequence[Dataset]) -> tuple[str, str]:
    (dataset,) = datasets
    return dataset.namespace, dataset.name


def test_connectors_name_what_they_read_and_write(tmp_path: Path) -> None:
    local = _name(naming.LocalFileSystem(str(tmp_path / "t")))
    topic = _name(naming.Kafka("broker", "9092", "flights"))
    brokers = "broker:9092,other:9092"
    assert _only(DeltaSink(tmp_path / "t").datasets()) == local
    assert _only(DeltaSource(tmp_path / "t", schema=Row).datasets("")) == local
    assert _only(FileSink(tmp_path / "t").datasets()) == local
    assert _only(FileSource(tmp_path / "t", schema=Row).datasets("")) == local
    assert _only(FileSource(f"{tmp_path}/t/*.parquet", schema=Row).datasets("")) == local
    assert _only(SparkSource("delta", schema=Row, path=str(tmp_path / "t")).datasets("")) == local
    assert _only(KafkaSink(brokers, topic="flights").datasets()) == topic
    assert _only(KafkaSource(brokers, schema=Row, topics="flights").datasets("")) == topic


class Changed(msgspec.Struct):
    id: int
    kind: str


@pytest.mark.parametrize(
    ("index", "is_start", "version"), [(-1, "true", "7"), (3, "true", "7"), (-1, "false", "6"), (0, "false", "7")]
)
def test_a_delta_source_names_the_newest_version_of_which_it_has_read_rows(
    tmp_path: Path, index: int, is_start: str, version: str
) -> None:
    source = DeltaSource(tmp_path, schema=Changed, changes=True, metadata={"kind": "change"})
    offset = f'{{"reservoirId":"t","reservoirVersion":7,"index":{index},"isStartingVersion":{is_start}}}'
    (read,) = source.datasets(offset)
    assert read.version == version and read.added == {"kind"}
    assert source.datasets("")[0].version == ""


class Followed(msgspec.Struct):
    id: int
    gone: bool


def test_a_followed_table_has_its_version_and_not_the_field_for_removed_rows(tmp_path: Path) -> None:
    table, runs = BatchTable(tmp_path, schema=Followed, refresh=timedelta(minutes=1), deleted="gone"), Graph()
    runs.add_source("table", table)
    position = '{"table":"t","version":12}'
    for offset, version in (
        (position, "12"),
        (json.dumps(spark_position(position)), "12"),
        ("", ""),
        (json.dumps(spark_position(None)), ""),
    ):
        (facts,) = JobDatasets(runs).inputs([SourcePosition(uid="table", description="", offset=offset or NOT_BEGUN)])
        assert (facts.columns, facts.version) == ((("id", "bigint"),), version)


def test_the_topics_of_a_pattern_are_those_of_the_position() -> None:
    source = KafkaSource("broker:9092", schema=Row, pattern="fl.*")
    assert source.datasets("") == []
    assert [each.name for each in source.datasets('{"flights":{"0":3,"1":4},"flocks":{"0":1}}')] == [
        "flights",
        "flocks",
    ]


def test_a_delta_table_has_its_name_in_a_catalog_as_a_symlink(tmp_path: Path) -> None:
    (own,) = DeltaSink(tmp_path / "t", register_as="sales.totals").datasets()
    (other,) = DeltaSink(tmp_path / "t", register_as="lake.sales.totals").datasets()
    assert (own.storage, own.tables) == ("delta", (("spark_catalog", "sales.totals"),))
    assert other.tables == (("lake", "sales.totals"),)


def _table(host: str, port: str, database: str) -> tuple[str, str]:
    return _name(naming.Postgres(host, port, database, "public", "daily"))


@pytest.mark.parametrize(
    ("conninfo", "expected"),
    [
        ("host=db dbname=flights user=etl password=s3cret", _table("db", "5432", "flights")),
        ("postgresql://etl:s3cret@db:6543/flights", _table("db", "6543", "flights")),
        ("host=db,standby port=6543,6544 dbname=flights", _table("db", "6543", "flights")),
        ("user=etl", _table("localhost", "5432", "reports")),
    ],
)
def test_a_postgres_table_is_named_without_its_login(
    conninfo: str, expected: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGHOST", raising=False)
    monkeypatch.delenv("PGPORT", raising=False)
    monkeypatch.setenv("PGDATABASE", "reports")
    assert _only(PostgresSink(conninfo, "daily").datasets()) == expected


def test_an_iceberg_table_is_in_the_namespace_of_its_catalog() -> None:
    properties = {"uri": "https://user:s3cret@catalog/v1/?token=s3cret", "token": "s3cret"}
    assert _only(IcebergSink("sales.totals", properties=properties).datasets()) == (
        "https://catalog/v1",
        "sales.totals",
    )
    assert _only(IcebergSink("sales.totals", catalog="lake").datasets()) == ("iceberg://lake", "sales.totals")


def test_texts_lose_logins_and_queries_of_their_urls() -> None:
    text = "could not read https://user:s3cret@host/a?sig=s3cret or jdbc:postgresql://u:s3cret@db/x (a@b)"
    assert without_credentials(text) == "could not read https://host/a or jdbc:postgresql://db/x (a@b)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("postgresql://u:p@s3cret@host/db", "postgresql://host/db"),
        ("kafka://u:s3/cret@host:9092/topic", "kafka://host:9092/topic"),
        ("kafka://u:s3/cr@et@host", "kafka://host"),
        ("host=db password=s3cret user=u", "host=db password=… user=u"),
        ("host=db password='s3 cret' user=u", "host=db password=… user=u"),
        ("AWS_SECRET_ACCESS_KEY = s3cret, x", "AWS_SECRET_ACCESS_KEY = …, x"),
        ("a?sas_token=s3cret&b=1", "a?sas_token=…&b=1"),
        ("https://host:8080/path@2", "https://host:8080/path@2"),
        ("https://host/path@2", "https://host/path@2"),
        ("https://[::1]:80/path@2", "https://[::1]:80/path@2"),
        ('{"next_token": "7", "password": null}', '{"next_token": "7", "password": null}'),
    ],
)
def test_no_form_of_a_login_is_left(text: str, expected: str) -> None:
    assert without_credentials(text) == expected
