"""Batches of jobs on Spark run again, whatever the source is: in Spark's tasks, and with a key in the driver's process.

What a replay shows is compared with what the run has published and stored, which is read without stateflow.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.replay.replay_process import SparkReplays, spark_replays
from tests.servers.kafka import Kafka, kafka_broker
from tests.spark.jobs import folders
from tests.spark.kafka_job import KafkaJob
from tests.spark.processes import ModuleJob
from tests.spark.test_delta_input_job import DeltaJob
from tests.support import folder_tables, root_files
from tests.support.cli_fixture import contents
from tests.support.ledger_job import LedgerJob
from tests.support.ledgers import write

pytestmark = [pytest.mark.spark, pytest.mark.slow(reason="runs jobs on Spark")]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkReplays]:
    with spark_replays(tmp_path_factory.mktemp("s")) as started:
        yield started


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with kafka_broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@dataclass
class Original:
    """What a job has published and stored.

    Args:
        tables: the folder that each sink publishes to, by uid; without sinks of other kinds.
        key: a key whose batches also run in one process.
    """

    spark: SparkReplays
    job: ModuleJob
    tables: dict[str, str]
    key: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def batches(self) -> list[int]:
        return [ref["id"] for ref in root_files.kept_refs(self.job.root)]

    def check(self, batch: int) -> int:
        """A replay of a batch shows its rows, leads to its state, and changes nothing.

        Returns the number of batches that led to the checkpoint.
        """
        before = self._kept()
        shown = self.spark.replay(self.job, batch, **self.settings)
        assert shown.get("error") is None, shown
        self._check_result(shown, batch)
        if self.key:
            self._check_result(self.spark.replay(self.job, batch, self.key, **self.settings), batch)
        assert self._kept() == before
        return len(shown["rows_in"])

    def _check_result(self, shown: dict[str, Any], batch: int) -> None:
        assert (shown["same"], shown["deviation"]) == (True, ""), shown
        for sink, table in self.tables.items():
            published = folder_tables.by_token(self.job.folder / table).get(batch, [])
            assert _multiset(shown["rows"][sink]) == _multiset(published), (sink, batch)

    def _kept(self) -> tuple[dict[str, str], list[Any]]:
        """All files except the log, and what the newest entry says apart from pins."""
        files = contents(self.job.folder)
        newest = root_files.head(self.job.root)
        lasting = [newest.doc["generation"], newest.checkpoint, newest.doc["sources"]]
        return {name: text for name, text in files.items() if not name.startswith("root/log/")}, lasting


def _multiset(rows: Sequence[dict[str, Any]]) -> Counter[str]:
    return Counter(json.dumps(row, sort_keys=True, default=str).replace("T", " ") for row in rows)


# -- files ------------------------------------------------------------------------------------------------------------


def _write_files(folder: Path, *numbers: int) -> None:
    for number in numbers:
        rows = [{"name": f"n{number % 2}", "number": 10 * number + at} for at in range(4)]
        file = folder / "json" / f"{number}.json"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        # Spark reads older files first.
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))


def _folders_job(folder: Path, **settings: object) -> ModuleJob:
    job = ModuleJob(folder, folders, parallelism=2, source__max_files_per_batch=1, **settings)  # type: ignore[arg-type]
    (folder / folders.PARQUET).mkdir()
    (folder / "json").mkdir()
    return job


@pytest.mark.parametrize("policy", ["quarantine", "fail"])
def test_batches_over_files_and_a_collection_show_their_rows_and_state(
    spark: SparkReplays, tmp_path: Path, policy: str
) -> None:
    job = _folders_job(tmp_path, job__corrupt=policy)
    _write_files(tmp_path, 0, 1, 2)
    spark.run(job)
    original = Original(spark, job, {"out": "out", "sums": "sums"}, ("n1",))
    first = original.batches
    # Of a later run, with two batches between its checkpoints. With a collection, Spark reads all files at once.
    _write_files(tmp_path, 3, 4, 5, 6)
    spark.run(job, checkpoints__interval_batches=2)
    counts = [original.check(batch) for batch in original.batches]
    assert counts == ([1, 1, 1, 2, 2] if policy == "quarantine" else [1, 1])
    assert len(first) == (3 if policy == "quarantine" else 1)


def test_files_that_were_removed_or_changed_are_an_error(spark: SparkReplays, tmp_path: Path) -> None:
    job = _folders_job(tmp_path)
    _write_files(tmp_path, 0, 1, 2)
    spark.run(job)
    first, second, third = Original(spark, job, {}).batches
    (tmp_path / "json" / "0.json").unlink()
    (tmp_path / "json" / "1.json").write_text("{}\n")
    for batch in (first, second):
        _check_lost(spark.replay(job, batch), "json", batch, [third])


def _check_lost(answer: dict[str, Any], source: str, batch: int, left: list[int]) -> dict[str, Any]:
    """A source no longer has the rows of a batch; it still has those of other ones."""
    assert answer.get("error") == "input-lost", answer
    facts: dict[str, Any] = answer["facts"]
    assert (facts["source"], facts["batch"], facts["left"]) == (source, batch, left), answer
    return facts


# -- Kafka ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def orders(tmp_path: Path, kafka: Kafka) -> KafkaJob:
    job = KafkaJob(tmp_path, kafka, source__max_rows_per_batch=10)
    job.create()
    return job


def test_batches_over_kafka_show_their_rows_and_state(spark: SparkReplays, orders: KafkaJob) -> None:
    orders.send(12)
    orders.send(11, partition=1)
    spark.run(orders, job__idle_s=1)
    original = Original(spark, orders, {"orders-out": "orders", "counts-out": "counts"}, ("n1",), {"job__idle_s": 1})
    orders.send(15)
    orders.send(15, partition=1)
    spark.run(orders, checkpoints__interval_batches=2, job__idle_s=1)
    versions = DeltaTable(str(orders.folder / "newest")).version()
    assert max([original.check(batch) for batch in original.batches]) == 2
    assert DeltaTable(str(orders.folder / "newest")).version() == versions


@pytest.mark.parametrize("policy", ["fail", "continue"])
def test_records_that_kafka_has_removed_are_an_error(spark: SparkReplays, orders: KafkaJob, policy: str) -> None:
    orders.send(30)
    spark.run(orders, job__on_data_loss=policy)
    first, second, third = Original(spark, orders, {}).batches
    orders.kafka.delete_records(orders.topic, 0, 15)
    for batch in (first, second):
        facts = _check_lost(spark.replay(orders, batch, job__on_data_loss=policy), "orders", batch, [third])
        assert "15)" in str(facts["lost"])
    shown = spark.replay(orders, third, job__on_data_loss=policy)
    assert shown.get("same"), shown


# -- Delta ------------------------------------------------------------------------------------------------------------


def test_batches_over_a_delta_table_show_their_rows(spark: SparkReplays, tmp_path: Path) -> None:
    job = DeltaJob(tmp_path, source__max_files_per_batch=1)
    for number in range(3):
        job.add(10 * number, 10 * number + 1)
    spark.run(job)
    original = Original(spark, job, {"copied": "copied"})
    for number in range(3, 7):
        job.add(10 * number)
    spark.run(job, checkpoints__interval_batches=2)
    assert max([original.check(batch) for batch in original.batches]) == 2


def test_a_delta_table_without_the_files_or_the_log_is_an_error(spark: SparkReplays, tmp_path: Path) -> None:
    job = DeltaJob(tmp_path)
    batches = []
    for number in range(4):
        job.add(number)
        spark.run(job)
        batches = Original(spark, job, {}).batches
    # Compacted and vacuumed: the files of all versions are gone, and their log is not.
    table = DeltaTable(str(job.input))
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    facts = _check_lost(spark.replay(job, batches[1]), "items", batches[1], [batches[0], *batches[2:]])
    assert ".parquet" in str(facts["lost"])
    table.create_checkpoint()
    for version in range(3):
        (job.input / "_delta_log" / f"{version:020}.json").unlink()
    facts = _check_lost(spark.replay(job, batches[1]), "items", batches[1], [batches[0], *batches[3:]])
    assert "versions" in str(facts["lost"])
    shutil.rmtree(job.input)
    job.add(9)
    _check_lost(spark.replay(job, batches[1]), "items", batches[1], batches[:1])


# -- sources in Python, and any source of Spark -----------------------------------------------------------------------


def test_batches_over_a_source_in_python_show_rows_timers_and_dead_letters(spark: SparkReplays, tmp_path: Path) -> None:
    job = LedgerJob(tmp_path, job__budget=9, source__max_rows_per_batch=6)
    job.send("a", 10)
    job.send("b", 5, at=1000)
    write(tmp_path / "in", "b", "{")
    spark.run(job)
    original = Original(spark, job, {"entries-out": "entries", "counts": "counts", "letters": "letters"}, ("n1",))
    job.send("a", 9, at=500)
    spark.run(job, checkpoints__interval_batches=2)
    assert max([original.check(batch) for batch in original.batches]) == 2
    assert any(row["count"] < 0 for row in job.table_rows("counts")), "timers have fired"
    assert job.table_rows("letters")


def test_rows_that_a_source_in_python_does_not_return_again_are_an_error(spark: SparkReplays, tmp_path: Path) -> None:
    job = DeltaJob(tmp_path, job__kind="numbers", source__max_rows_per_batch=2)
    (tmp_path / "numbers").write_text("".join(f"{number}\n" for number in range(5)))
    spark.run(job)
    original = Original(spark, job, {"copied": "copied"})
    first, second, third = original.batches
    original.check(third)
    (tmp_path / "numbers").write_text("0\n1\n2\n")
    # The source does not know what it has lost before it is read.
    _check_lost(spark.replay(job, second), "items", second, [first, third])
    original.check(first)
