"""The tests' Spark session, by the name that tests here use, a Delta table, a PostgreSQL server, and stores."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stateflow.connectors import DeltaSink
from tests.servers.postgres import Postgres, postgres_server
from tests.servers.running import azure_server, s3_server
from tests.support.delta_tables import context
from tests.support.object_stores import serve_google, serve_hdfs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_numbers = itertools.count()
_DRIVERS = (
    "test_drivers_that_are_interrupted_neither_lose_nor_repeat_a_row",
    "test_an_older_driver_that_publishes_late_does_not_harm_the_newest",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Appending to a Delta table has its tests with killed, stopped and racing processes in the fast tier."""
    for item in items:
        if isinstance(item, pytest.Function) and item.originalname in _DRIVERS:
            if getattr(item.cls, "has_slow_drivers", False):
                item.add_marker(pytest.mark.slow(reason="drivers in processes, killed at many lines of the sink"))


@pytest.fixture(scope="session")
def spark(spark_session: SparkSession) -> SparkSession:
    """A session that can read and write Delta tables by path."""
    return spark_session


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A server, shared by the tests of a process: each has tables or a schema of its own."""
    with postgres_server() as server:
        yield server


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The folder of a Delta table, unless a module has tables of another kind."""
    return tmp_path / "out"


@pytest.fixture
def sink(table: Path) -> DeltaSink:
    """A sink of rows `Pair`, whose Delta table exists and is empty."""
    made = DeltaSink(table)
    made.prepare(context())
    return made


@pytest.fixture(scope="session")
def _s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    with s3_server(tmp_path_factory.mktemp("s3"), "bucket") as environment:
        yield environment


@pytest.fixture
def s3(_s3: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """An unused address in a bucket of an S3 server, for which the environment has credentials."""
    for name, value in _s3.items():
        monkeypatch.setenv(name, value)
    return f"s3://bucket/tables/{next(_numbers)}"


@pytest.fixture(scope="session")
def _hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Mapping[str, str]]]:
    with serve_hdfs(tmp_path_factory.mktemp("hdfs")) as served:
        yield served


@pytest.fixture
def hdfs(_hdfs: tuple[str, Mapping[str, str]], monkeypatch: pytest.MonkeyPatch) -> str:
    """An unused address on a server of WebHDFS, for which the environment has a token."""
    address, variables = _hdfs
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return f"{address}/tables/{next(_numbers)}"


@pytest.fixture(scope="session")
def _azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    with azure_server(tmp_path_factory.mktemp("azure"), "container") as environment:
        yield environment


@pytest.fixture
def azure(_azure: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """An unused address in a container of an Azure server, for which the environment has credentials."""
    for name, value in _azure.items():
        monkeypatch.setenv(name, value)
    return f"az://container/tables/{next(_numbers)}"


@pytest.fixture(scope="session")
def _google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Mapping[str, str]]]:
    with serve_google(tmp_path_factory.mktemp("google")) as served:
        yield served


@pytest.fixture
def google(_google: tuple[str, Mapping[str, str]], monkeypatch: pytest.MonkeyPatch) -> str:
    """An unused address in a bucket of the minimal server of Google's protocol, for which the environment has a key."""
    address, variables = _google
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return f"{address}/tables/{next(_numbers)}"


@pytest.fixture(
    params=[
        "s3",
        pytest.param("azure", marks=pytest.mark.long(reason="starts a server of Azure's API")),
        "google",
        pytest.param("hdfs", marks=pytest.mark.long(reason="sends several requests for each file")),
    ]
)
def each_store(request: pytest.FixtureRequest) -> str:
    """An unused address on a server of each kind, one after the other."""
    address: str = request.getfixturevalue(request.param)
    return address
