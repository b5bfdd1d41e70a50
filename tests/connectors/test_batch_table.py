"""A Delta table as a broadcast stream: what its versions change, across runs, restores and lost files."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from stateflow import StreamExecutionEnvironment
from stateflow.api.source import Backlog
from stateflow.checkpoint.barriers import error_in_text
from stateflow.clock import ManualClock
from stateflow.config.settings import SourceSettings
from stateflow.connectors import python
from stateflow.connectors.batch_table import BatchTable
from stateflow.errors import ConfigError, InputLost, JobDefinitionError, MissingFile, SchemaMismatch
from stateflow.testing.sinks import FolderSink
from tests.spark.jobs.enriched import Price, Priced, Sale, WithPrice
from tests.support.errors import raises
from tests.support.local_jobs import Growing, LocalJobs

LIMITS = SourceSettings()
MINUTE = timedelta(minutes=1)


class Prices:
    def __init__(self, folder: Path, **options: Any) -> None:
        self.path = folder / "prices"
        self.options = options

    def add(self, *rows: tuple[str, int]) -> None:
        items, prices = zip(*rows, strict=True)
        columns = pa.table({"item": pa.array(items), "price": pa.array(prices, pa.int64()), "more": pa.array(prices)})
        write_deltalake(self.path, columns, mode="append", **self.options)

    def delete(self, condition: str) -> None:
        DeltaTable(self.path).delete(condition)

    def update(self, condition: str, price: str) -> None:
        DeltaTable(self.path).update({"price": price}, predicate=condition)

    def vacuum(self) -> None:
        DeltaTable(self.path).vacuum(0, enforce_retention_duration=False, dry_run=False)

    def source(self, **more: Any) -> BatchTable:
        return BatchTable(self.path, schema=Price, refresh=MINUTE, **more)

    def rows(self) -> Counter[tuple[str, int]]:
        columns = DeltaTable(self.path).to_pyarrow_table()
        return Counter(zip(columns["item"].to_pylist(), columns["price"].to_pylist(), strict=True))


@pytest.fixture
def prices(tmp_path: Path) -> Prices:
    return Prices(tmp_path)


def _tuples(rows: Sequence[Any]) -> list[tuple[str, int, bool]]:
    return [(row.item, row.price, row.deleted) for row in rows]


@pytest.mark.parametrize("partitioned", [False, True])
def test_each_version_is_what_the_one_before_lacks_and_has_too_much(tmp_path: Path, partitioned: bool) -> None:
    """The changes of random commits, applied to a multiset of rows, are the table."""
    rng = random.Random(7)
    prices = Prices(tmp_path, **({"partition_by": ["item"]} if partitioned else {}))
    known: Counter[tuple[str, int]] = Counter()
    position = None
    for step in range(14):
        kind = rng.randrange(4) if step else 0
        if kind < 2:
            prices.add(*[(rng.choice("abc"), rng.randrange(3)) for _ in range(rng.randrange(1, 5))])
        elif kind == 2:
            prices.update(f"item = '{rng.choice('abc')}'", "price + 1")
        else:
            prices.delete(f"price = {rng.randrange(4)}")
        if rng.random() < 0.3:
            DeltaTable(prices.path).optimize.compact()
        if rng.random() < 0.7:
            found = prices.source().read(position, LIMITS)
            assert found is None or prices.source().between(position, found.position) == found.rows
            for item, price, deleted in _tuples(found.rows if found else ()):
                known[item, price] += -1 if deleted else 1
                assert known[item, price] >= 0
            position = found.position if found else position
            assert +known == prices.rows()


def test_the_table_is_looked_at_once_per_refresh(prices: Prices) -> None:
    clock = ManualClock()
    source = prices.source(clock=clock)
    prices.add(("a", 1))
    first = source.read(None, LIMITS)
    prices.add(("b", 2))
    assert first is not None and source.read(first.position, LIMITS) is None
    clock.sleep(MINUTE)
    found = source.read(first.position, LIMITS)
    assert found is not None and _tuples(found.rows) == [("b", 2, False)]


def test_the_backlog_is_what_the_version_at_the_position_lacks(prices: Prices) -> None:
    source = prices.source()
    prices.add(("a", 1), ("b", 2))
    prices.delete("item = 'b'")
    before = source.backlog(None)
    assert (before.rows, before.files, before.exact) == (1, 1, True) and before.size_bytes
    first = source.read(None, LIMITS)
    assert first is not None and source.backlog(first.position) == Backlog(rows=0, size_bytes=0, files=0)
    assert not source.has_new_input(first.position)
    prices.add(("c", 3), ("d", 4), ("e", 5))
    prices.add(("f", 6))
    prices.delete("item = 'a'")
    assert source.has_new_input(first.position)
    waiting = source.backlog(first.position)
    # Three files: two new ones, and one without its last row.
    assert (waiting.rows, waiting.files, waiting.exact) == (5, 3, False)
    log = DeltaTable(prices.path).history()
    written = next(entry["timestamp"] for entry in log if entry["version"] == 2)
    assert waiting.oldest_at is not None and waiting.oldest_at.timestamp() * 1000 == pytest.approx(written, abs=2000)
    prices.path.rename(prices.path.with_name("old"))
    prices.add(("x", 1))
    assert source.backlog(first.position).unknown


def test_a_version_whose_files_are_gone_is_an_error_with_the_version(prices: Prices) -> None:
    prices.add(("a", 1))
    first = prices.source().read(None, LIMITS)
    assert first is not None
    prices.add(("b", 1))
    prices.vacuum()
    assert prices.source().holds(first.position) is True
    prices.update("item = 'a'", "2")
    prices.vacuum()
    with raises(InputLost, version=0) as lost:
        prices.source().read(first.position, LIMITS)
    assert "--source" in lost.value.hint
    assert prices.source().holds(first.position) is False
    assert prices.source().read(None, LIMITS) is not None


@pytest.mark.parametrize("lost", ["table", "entry"])
def test_another_table_at_the_path_and_a_version_without_an_entry_are_errors(
    prices: Prices, tmp_path: Path, lost: str
) -> None:
    prices.add(("a", 1))
    first = prices.source().read(None, LIMITS)
    if lost == "table":
        prices.path.rename(tmp_path / "before")
    prices.add(("a", 1))
    if lost == "entry":
        DeltaTable(prices.path).create_checkpoint()
        (prices.path / "_delta_log" / f"{0:020d}.json").unlink()
    assert first is not None
    with raises(InputLost, version=0):
        prices.source().read(first.position, LIMITS)


class Wrong(msgspec.Struct):
    item: int
    deleted: bool


class Missing(msgspec.Struct):
    item: str
    none: str | None
    deleted: bool


class NoFlag(msgspec.Struct):
    item: str
    deleted: bool | None


def test_a_table_that_is_not_declared_so_is_an_error(prices: Prices) -> None:
    with raises(ConfigError, source=prices.source().description):
        prices.source().read(None, LIMITS)
    prices.add(("a", 1))
    for row_class in (Wrong, Missing):
        with raises(SchemaMismatch, table=str(prices.path)):
            BatchTable(prices.path, schema=row_class, refresh=MINUTE).read(None, LIMITS)
    for given in ({"schema": NoFlag}, {"schema": Price, "deleted": "none"}, {"refresh": timedelta(0)}):
        with raises(JobDefinitionError):
            BatchTable(prices.path, **{"schema": Price, "refresh": MINUTE, **given})  # type: ignore[arg-type]


@pytest.mark.parametrize("position", ["3", '{"table":' * 100_000], ids=["number", "nested"])
def test_what_is_no_position_is_refused(prices: Prices, position: str) -> None:
    prices.add(("a", 1))
    with raises(ConfigError, source=prices.source().description, position=position[:500]):
        prices.source().read(position, LIMITS)


def test_a_job_enriches_rows_with_the_version_of_its_run_and_continues_from_that_version(
    tmp_path: Path, prices: Prices
) -> None:
    jobs = LocalJobs(tmp_path, max_parallelism=8, parallelism=2)
    sales: list[Sale] = []

    def build(env: StreamExecutionEnvironment) -> None:
        table = env.from_table(prices.path, schema=Price, refresh=MINUTE, uid="prices")
        keyed = env.from_source(Growing(sales, Sale), uid="sales").key_by("item")
        priced = keyed.connect(table).process(WithPrice(), output=Priced, uid="priced")
        priced.sink_to(FolderSink(tmp_path / "out"), uid="out")

    def sell(*items: str) -> None:
        sales.extend([Sale(item, len(sales) + at) for at, item in enumerate(items)])
        jobs.run(build)

    prices.add(("a", 1), ("b", 2))
    sell("a", "b", "c")
    sell("a")
    prices.update("item = 'a'", "5")
    prices.delete("item = 'b'")
    prices.add(("c", 7))
    sell("a", "b", "c")
    found = {row["number"]: row["price"] for row in FolderSink(tmp_path / "out").rows()}
    assert found == dict(enumerate([1, 2, None, 1, 5, None, 7]))
    root = jobs.prepare(build).job.root
    manifest = root.checkpoints.manifest_at(root.head())
    assert manifest is not None
    positions = {position.uid: position.offset for position in manifest.sources}
    assert json.loads(positions["prices"])["version"] == DeltaTable(prices.path).version()


def test_spark_gets_the_rows_between_two_versions_and_the_error_of_a_version_that_is_gone(prices: Prices) -> None:
    prices.add(("a", 1))
    reader = python._Reader(prices.source(), LIMITS)
    rows, first = reader.read(reader.initialOffset())
    assert list(rows) == [("a", 1, False)]
    prices.update("item = 'a'", "2")
    prices.delete("item = 'a'")
    _, second = python._Reader(prices.source(), LIMITS).read(first)
    prices.add(("b", 3))
    again = python._Reader(prices.source(), LIMITS).readBetweenOffsets(reader.initialOffset(), first)
    assert list(again) == [("a", 1, False)]
    assert list(reader.readBetweenOffsets(first, second)) == [("a", 1, True)]
    prices.vacuum()
    with pytest.raises(RuntimeError) as failed:
        python._Reader(prices.source(), LIMITS).read(first)
    assert isinstance(error_in_text(str(failed.value)), InputLost)


def test_a_missing_file_of_the_newest_version_is_not_lost_input(prices: Prices) -> None:
    prices.add(("a", 1))
    for path in prices.path.glob("*.parquet"):
        path.unlink()
    with raises(MissingFile, table=str(prices.path)):
        prices.source().read(None, LIMITS)
