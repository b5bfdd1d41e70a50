"""A job in several modules whose driver is started in a folder with other files of these names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from stateflow.testing.sinks import FolderSink
from tests.servers.spark import spark_cluster
from tests.support.processes import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.slow(reason="each run is a driver with Spark, which takes seconds")]

_JOB = {
    "pay.py": """
from rows import Paid, Total
from stateflow import FileSource, KeyedProcessFunction, ValueStateDescriptor
from stateflow.testing.sinks import FolderSink

FACTOR = 100

def times(row):
    from lazy.factors import HALF
    return Paid(row.name, row.value * FACTOR * HALF)

def doubled(frame):
    from pyspark.sql.functions import udf
    from rows import double
    return frame.withColumn("value", udf(double, "double")("value"))

class Sum(KeyedProcessFunction):
    def open(self, ctx):
        self.total = ctx.get_state(ValueStateDescriptor("total", Total))
    def process_element(self, row, ctx):
        before = self.total.value() or Total(0.0, frozenset())
        self.total.update(Total(before.sum + row.value, before.names | {row.name}))
        yield Paid(row.name, self.total.value().sum)

def build(env):
    home = env.parameter("home")
    paid = env.from_source(FileSource(f"{home}/in", schema=Paid, format="json"), uid="in")
    rows = paid.transform(doubled, output=Paid)
    rows.map(times, output=Paid).key_by("name").process(Sum(), output=Paid, uid="sum").sink_to(
        FolderSink(f"{home}/out"), uid="out"
    )
""",
    "rows.py": """
from dataclasses import dataclass
import msgspec

@dataclass
class Paid:
    name: str
    value: float

class Total(msgspec.Struct):
    sum: float
    names: frozenset[str]

def double(value):
    return 2 * value
""",
    "lazy/__init__.py": "",
    "lazy/factors.py": "HALF = 0.5",
}
_DECOYS = dict.fromkeys(("rows.py", "lazy.py"), "raise RuntimeError('another file')") | {
    "pay.py": _JOB["pay.py"].replace("FACTOR = 100", "FACTOR = 1")
}


def _write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def _call(folder: Path, *words: str) -> str:
    """Runs a command of the installed program, which does not import from the folder that it is started in."""
    command = [str(Path(sys.executable).with_name("stateflow")), *words, "--job-root", str(folder / "root")]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder / "x", env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout


def test_workers_of_a_cluster_import_the_job_file_and_modules_of_the_same_folder(tmp_path: Path) -> None:
    _write(tmp_path / "x", {**_DECOYS, **{f"v2/{name}": text for name, text in _JOB.items()}})
    _write(tmp_path, {"home/in/1.json": '{"name": "a", "value": 3}\n{"name": "b", "value": 1}\n'})

    def totals() -> list[tuple[object, ...]]:
        return sorted(tuple(row.values()) for row in FolderSink(tmp_path / "home" / "out").rows())

    def code() -> list[str]:
        return [each["code_hash"] for each in json.loads(_call(tmp_path, "status", "--json"))["points"]]

    with spark_cluster(tmp_path / "cluster", {"PYTHONPATH": str(ROOT)}) as cluster:
        settings = {
            "parallelism": "2", "job.home": str(tmp_path / "home"), "storage.shared": "true",
            "spark.master": cluster.url, "spark.conf.spark.executor.memory": "700m",
            "spark.conf.spark.driver.host": "127.0.0.1",
        }  # fmt: skip
        run = ["run", str(tmp_path / "x/v2/pay.py"), *(f"--set={name}={value}" for name, value in settings.items())]
        _call(tmp_path, *run)
        assert totals() == [("a", 300.0), ("b", 100.0)]
        _write(tmp_path, {"home/in/2.json": '{"name": "a", "value": 1}\n', "x/v2/lazy/factors.py": "HALF = 5.0"})
        _call(tmp_path, *run)
    assert totals() == [("a", 300.0), ("a", 1300.0), ("b", 100.0)]
    first, second = code()
    assert first and first != second
