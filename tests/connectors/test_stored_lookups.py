"""Tables that enrich rows, in stores: followed from version to version, or looked up in each batch."""

from __future__ import annotations

import gzip
import random
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from stateflow import DeltaSource, FileSource, StreamExecutionEnvironment
from stateflow.api.joins.lookup_join import LookupColumns, LookupJoin, cache_table
from stateflow.config.settings import SourceSettings
from stateflow.connectors.batch_table import BatchTable
from stateflow.errors import ConfigError, CorruptInput, InputLost, JobDefinitionError, StorageError
from stateflow.storage import MemoryStorage, object_store, open_storage, register_memory, unregister_memory
from tests.spark.jobs.enriched import Price, Sale
from tests.support.errors import raises
from tests.support.object_stores import EACH_STORE, Serve, bucket_of, mirror, serve_s3

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LIMITS, _MINUTE = SourceSettings(), timedelta(minutes=1)


class Table:
    """A table that delta-rs writes to a local folder, and a copy of it in a store."""

    def __init__(self, folder: Path, address: str) -> None:
        self.path, self.address = folder / "table", f"{address}/tables/prices"
        self._known: dict[str, bytes] = {}

    def add(self, *rows: tuple[str, int]) -> None:
        items, prices = zip(*rows, strict=True)
        columns = pa.table({"item": pa.array(items), "price": pa.array(prices, pa.int64())})
        write_deltalake(str(self.path), columns, mode="append", partition_by=["item"])

    def copy(self) -> None:
        self._known = mirror(self.path, open_storage(self.address), self._known)

    def source(self) -> BatchTable:
        return BatchTable(self.address, schema=Price, refresh=_MINUTE)

    def rows(self) -> Counter[tuple[str, int]]:
        columns = DeltaTable(str(self.path)).to_pyarrow_table()
        return Counter(zip(columns["item"].to_pylist(), columns["price"].to_pylist(), strict=True))


@pytest.fixture
def memory() -> Iterator[MemoryStorage]:
    storage = MemoryStorage("memory://lookups")
    register_memory(storage)
    yield storage
    unregister_memory(storage.uri)


@pytest.mark.parametrize("serve", EACH_STORE)
def test_a_table_in_a_store_is_followed_from_version_to_version(tmp_path: Path, serve: Serve) -> None:
    """The changes, applied to a multiset of rows, are what delta-rs reads."""
    rng, known, position = random.Random(3), Counter[tuple[str, int]](), None
    with bucket_of(serve, tmp_path / "server") as bucket:
        table = Table(tmp_path, bucket)
        for step in range(6):
            if step == 2:
                DeltaTable(str(table.path)).update({"price": "price + 1"}, predicate="item = 'a b'")
            elif step == 4:
                DeltaTable(str(table.path)).optimize.compact()
            else:
                table.add(*[(rng.choice(("a b", "é", "100%")), rng.randrange(3)) for _ in range(4)])
            table.copy()
            found = table.source().read(position, _LIMITS)
            assert found is not None and table.source().between(position, found.position) == found.rows
            for row in found.rows:
                assert isinstance(row, Price)
                known[row.item, row.price] += -1 if row.deleted else 1
            position = found.position
            assert +known == table.rows() and table.source().holds(position)
        DeltaTable(str(table.path)).update({"price": "price + 1"})
        DeltaTable(str(table.path)).vacuum(0, enforce_retention_duration=False, dry_run=False)
        table.copy()
        with raises(InputLost, version=5):
            table.source().read(position, _LIMITS)


def test_a_table_whose_store_does_not_answer_is_an_error_with_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "_RETRIES", {"max_retries": 0})
    with serve_s3(tmp_path / "server") as (bucket, variables), pytest.MonkeyPatch.context() as environment:
        for name, value in variables.items():
            environment.setenv(name, value)
        table = Table(tmp_path, bucket)
        with raises(ConfigError, source=f"BatchTable[{table.address}]"):
            table.source().read(None, _LIMITS)
        table.add(("a", 1))
        table.copy()
        found = table.source().read(None, _LIMITS)
        assert found is not None
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with raises(StorageError, storage=table.address):
        table.source().read(found.position, _LIMITS)
    assert table.source().holds(found.position) is None


class Named(msgspec.Struct):
    item: str
    price: int | None


_SALES = [("a b", 1), ("none", 2), ("é", 3), ("a b", 4)]


def _looked_up(spark: SparkSession, table: Any) -> list[tuple[str, int, int | None]]:
    """The sales with the prices of their items, by a look-up join."""
    columns = LookupColumns({"item": "item"}, ("item", "number", "price"), "left")
    lookup = LookupJoin(cache_table(table, None), columns)
    frame = spark.createDataFrame(_SALES, "item string, number bigint")
    return sorted(tuple(row) for row in lookup(frame).collect())


def _priced(prices: dict[str, int]) -> list[tuple[str, int, int | None]]:
    return sorted((item, number, prices.get(item)) for item, number in _SALES)


@pytest.mark.spark
@pytest.mark.parametrize("serve", EACH_STORE)
def test_rows_are_looked_up_in_a_delta_table_of_a_store(
    spark_session: SparkSession, tmp_path: Path, serve: Serve
) -> None:
    with bucket_of(serve, tmp_path / "server") as bucket:
        table = Table(tmp_path, bucket)
        table.add(("a b", 1), ("é", 2))
        table.copy()
        source = DeltaSource(table.address, schema=Named)
        cached = cache_table(source, timedelta(hours=1))
        assert _looked_up(spark_session, source) == _looked_up(spark_session, cached) == _priced({"a b": 1, "é": 2})
        DeltaTable(str(table.path)).delete("item = 'é'")
        DeltaTable(str(table.path)).update({"price": "7"}, predicate="item = 'a b'")
        table.copy()
        assert _looked_up(spark_session, source) == _priced({"a b": 7})
        assert _looked_up(spark_session, cached) == _priced({"a b": 1, "é": 2})


@pytest.mark.spark
@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
@pytest.mark.parametrize("place", ["memory", "disk"])
def test_rows_are_looked_up_in_files(
    spark_session: SparkSession, tmp_path: Path, memory: MemoryStorage, format: str, place: str
) -> None:
    files = tmp_path / "files"
    for number, (item, price) in enumerate([("a b", 1), ("é", 2)]):
        folder = files / f"day={number}" / "deep"
        folder.mkdir(parents=True)
        if format == "parquet":
            pq.write_table(pa.table({"item": [item], "price": [price]}), folder / "x.parquet")
        else:
            text = f"{item},{price}\n" if format == "csv" else f'{{"item": "{item}", "price": {price}}}\n'
            (folder / f"x.{format}.gz").write_bytes(gzip.compress(text.encode()))
    mirror(files, memory)
    address = memory.uri if place == "memory" else str(files)
    source = FileSource(address if place == "disk" else f"{address}/*", schema=Named, format=format)
    assert _looked_up(spark_session, source) == _priced({"a b": 1, "é": 2})


@pytest.mark.spark
def test_a_look_up_in_files_that_cannot_be_read_names_them(spark_session: SparkSession, memory: MemoryStorage) -> None:
    source = FileSource(f"{memory.uri}/in", schema=Named, format="json")
    assert _looked_up(spark_session, source) == _priced({})
    memory.put_new("in/bad.json", b'{"item": "a", "pri')
    with raises(CorruptInput, file=f"{memory.uri}/in/bad.json"):
        _looked_up(spark_session, source)


def test_only_tables_are_looked_up() -> None:
    for source in (DeltaSource("/t", schema=Price, changes=True), FileSource("s3a://bucket/x", schema=Named)):
        env = StreamExecutionEnvironment()
        with raises(JobDefinitionError):
            env.from_collection([Sale("a", 1)], Sale, uid="in").lookup_join(source, on="item", output=Named)
        with raises(JobDefinitionError):
            env.register_lookup_table("prices", source, rows=Named)
