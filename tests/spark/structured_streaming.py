"""Queries of Structured Streaming, imported into a savepoint, and a run that continues from it; as a program.

``python -m tests.spark.structured_streaming HOME`` reads the files of ``HOME/orders`` by the queries, adds those of
``HOME/later`` to them, and runs `tests.spark.jobs.imported`. All of it uses one Spark, whose start takes longer.
It prints one JSON object of what it has found.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from stateflow import SparkCheckpoint, StateTtlConfig, ValueStateDescriptor, diff
from stateflow.bootstrap.frames import is_spark
from stateflow.config.spark_versions import running_version
from stateflow.errors import ConfigError, SchemaMismatch
from stateflow.launch import RunRequest, run_job
from stateflow.runtime.restore.new_job_root import InitialSavepoint
from tests.docs.pages import blocks, read, section
from tests.spark.jobs import imported
from tests.support.errors import raises

_SETTINGS = {
    **running_version().required,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state."
    "RocksDBStateStoreProvider",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # The last batch has rows, whose time to live of a millisecond has not passed at its time.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.adaptive.enabled": "false",
}
_DAYS = 100
ORDER = "shop string, product string, amount bigint, at bigint"


class Visits(StatefulProcessor):
    """What `imported.Visits` does."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.last = handle.getValueState("last", "at bigint, total bigint")
        self.amounts = handle.getListState("amounts", "amount bigint")
        self.products = handle.getMapState("products", "product string", "amount bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            _, total = self.last.get() or (0, 0)
            self.last.update((row.at, total + row.amount))
            self.amounts.appendValue((row.amount,))
            product = (row.product,)
            (known,) = self.products.getValue(product) or (0,)
            self.products.updateValue(product, (known + row.amount,))
            self.handle.registerTimer(row.at + imported.GAP)
            yield Row(shop=key[0])


class Expiring(StatefulProcessor):
    """Counts orders with a time to live of 100 days, and has the last one for a millisecond."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.recent = handle.getValueState("recent", "n bigint", ttlDurationMs=_DAYS * 24 * 3600 * 1000)
        self.brief = handle.getMapState("brief", "name string", "n bigint", ttlDurationMs=1)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            (count,) = self.recent.get() or (0,)
            self.recent.update((count + 1,))
            self.brief.updateValue(("last",), (row.at,))
            yield Row(shop=key[0])


def _run_queries(spark: SparkSession, home: Path) -> None:
    def orders() -> DataFrame:
        reader = spark.readStream.format("json").schema(ORDER).option("maxFilesPerTrigger", 1)
        return reader.load(str(home / "orders"))

    def run(frame: DataFrame, name: str) -> None:
        writer = frame.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
        writer.option("checkpointLocation", str(home / "checkpoints" / name)).start().awaitTermination()

    sums = orders().groupBy("shop").agg(F.count("*").alias("orders"), F.sum("amount").alias("total"))
    run(sums, "counts")
    timed = orders().withColumn("time", F.timestamp_millis("at")).withWatermark("time", "0 seconds")
    run(timed.groupBy("shop").transformWithState(Visits(), "shop string", "Update", "EventTime"), "visits")
    run(timed.dropDuplicates(["shop", "product"]), "distinct")
    windows = timed.groupBy("shop", F.window("time", "4 seconds", "2 seconds"))
    run(windows.agg(F.count("*").alias("orders"), F.sum("amount").alias("total")), "windows")
    expiring = orders().groupBy("shop").transformWithState(Expiring(), "shop string", "Update", "ProcessingTime")
    run(expiring, "expiring")


def _import(spark: SparkSession, home: Path) -> dict[str, Any]:
    """Writes the savepoint by the guide's command, and a part of it by its code; returns facts of the checkpoints."""
    guide = section(read("bootstrap-state"), "Import a Structured Streaming checkpoint")
    (code,) = blocks(guide, "python")
    sys.modules["imported"] = imported
    names: dict[str, Any] = {"spark": spark}
    exec(compile(code.replace('"/var/', f'"{home}/'), "guide", "exec"), names)
    del sys.modules["imported"]
    counted, visited, expiring = (
        SparkCheckpoint(home / "checkpoints" / name) for name in ("counts", "visits", "expiring")
    )
    _check_refusals(spark, counted, visited)
    (command,) = blocks(guide, "")
    by_command = _write_by_command(command, home)
    by_code = str(home / "savepoints" / "by-code")
    differences = {s.operator: s.keys for s in diff(by_code, by_command, ["counts", "visits"]).states}
    return {"watermark": visited.watermark, "differences": differences, **_expiring(spark, expiring)}


def _write_by_command(command: str, home: Path) -> str:
    """Runs the command of the guide in a session of its own, as a user does; returns the savepoint's path."""
    words = shlex.split(command.replace("\\\n", " ").replace("/var/", f"{home}/"))[1:]
    words[words.index("imported.py")] = str(imported.__file__)
    command_line = [sys.executable, "-m", "stateflow", *words, "--set", f"job.home={home}", "--json"]
    command_line += ["--set", f"local_dir={home / 'local'}"]
    wrong = subprocess.run(
        [*command_line, "--column", "counts.stats.shop=key.x"], capture_output=True, text=True, check=False
    )
    assert wrong.returncode == ConfigError.exit_code
    assert "Logger" not in wrong.stderr and len(wrong.stderr) < 3000, wrong.stderr
    ended = subprocess.run(command_line, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert not found["without_position"] and {state["rows"] for state in found["states"]} == {None}
    return str(found["path"])


def _expiring(spark: SparkSession, checkpoint: SparkCheckpoint) -> dict[str, Any]:
    recent = checkpoint.state(spark, "recent")
    config = StateTtlConfig.new_builder(timedelta(days=_DAYS)).build()
    frame = recent.frame(ValueStateDescriptor("recent", int, ttl=config), value="value.n").frame
    assert is_spark(frame)
    found = {row["shop"]: row for row in frame.collect()}
    last = max(row["written_at"] for row in found.values())
    assert last == checkpoint.time, "those of the last batch"
    brief = checkpoint.state(spark, "brief").rows.collect()
    return {
        "recent": {shop: row["value"] for shop, row in found.items()},
        "brief": sorted(row["key"]["shop"] for row in brief),
    }


def _check_refusals(spark: SparkSession, counted: SparkCheckpoint, visited: SparkCheckpoint) -> None:
    known = ["amounts", "last", "products"]
    with raises(ConfigError, variable="nothing", known=known):
        visited.state(spark, "nothing")
    with raises(ConfigError, operator=3, known=[(0, "stateStoreSave")]):
        counted.state(spark, operator=3)
    with raises(ConfigError, operator=3):
        visited.timers(spark, operator=3)
    with raises(ConfigError, time_mode="NoTime"):
        counted.timers(spark)
    with raises(ConfigError, path=visited.path):
        visited.state(spark, "last").frame(imported.LAST, value="value.nothing")
    with raises(SchemaMismatch, state="stats"):
        counted.state(spark).frame(imported.STATS, value={"orders": "value.count", "total": "key.shop"})
    with raises(SchemaMismatch, state="products", column="map_key"):
        visited.state(spark, "products").frame(imported.PRODUCTS, map_key="value.amount", value="value.amount")


def new_session(more: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder.master("local[2,4]").appName("queries")
    for name, value in (_SETTINGS | dict(more)).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _main(home: Path) -> None:
    spark = new_session({})
    _run_queries(spark, home)
    found = _import(spark, home)
    for file in sorted((home / "later").iterdir()):
        file.rename(home / "orders" / file.name)
    layers = ({"job.home": str(home), "local_dir": str(home / "local"), "source.max_files_per_batch": "1"},)
    initial = InitialSavepoint(str(home / "savepoints" / "imported"))
    run_job(RunRequest(Path(imported.__file__), str(home / "root"), layers, initial_savepoint=initial))
    print(json.dumps(found))


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
