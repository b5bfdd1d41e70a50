"""A job in several modules whose driver is started in a folder with other files of these names."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stateflow.testing.sinks import FolderSink
from tests.servers.spark import spark_cluster
from tests.support.processes import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.slow(reason="starts Spark for its jobs")]

_JOB = {
    "pay.py": """
import decimal
from lists import Lists
from rows import Paid, Total
from stateflow import DataStream, KeyedProcessFunction, ValueStateDescriptor
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
    rows = env.from_source(Lists(f"{home}/in.txt"), uid="in").transform(doubled, output=Paid)
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
    "lists.py": """
from pathlib import Path
from rows import Paid
from stateflow import PartitionedSource

class Lists(PartitionedSource):
    def __init__(self, path):
        super().__init__(schema=Paid)
        self.path = path
    @property
    def description(self):
        return "Lists"
    def starts(self):
        return {}
    def ends(self):
        return {"all": len(Path(self.path).read_text().splitlines())}
    def read_split(self, split):
        for line in Path(self.path).read_text().splitlines()[split.start : split.end]:
            yield Paid(line.split()[0], float(line.split()[1]))
""",
    "lazy/__init__.py": "",
    "lazy/factors.py": "HALF = 0.5",
}
_DECOYS = dict.fromkeys(("rows.py", "lists.py", "lazy.py"), "raise RuntimeError('another file')") | {
    "pay.py": _JOB["pay.py"].replace("FACTOR = 100", "FACTOR = 1")
}


class _Folders:
    def __init__(self, folder: Path) -> None:
        self.folder, self.cwd, self.version = folder, folder / "x", "x/v2"
        self.settings: dict[str, str] = {"parallelism": "2", "job.home": str(folder / "home")}
        (folder / "home").mkdir()
        for name, text in _DECOYS.items():
            self.write(f"x/{name}", text)
        for name, text in _JOB.items():
            self.write(f"{self.version}/{name}", text)

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def deliver(self, *lines: str) -> None:
        with (self.folder / "home" / "in.txt").open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    def call(self, command: str, *more: str, root: str = "root") -> str:
        """Runs a command of the installed program, which does not import from the folder that it is started in."""
        given = [part for item in self.settings.items() for part in ("--set", "=".join(item))]
        job = str(self.folder / self.version / "pay.py")
        words = [command, job, "--job-root", str(self.folder / root), *given, *more]
        done = subprocess.run(
            [str(Path(sys.executable).with_name("stateflow")), *words],
            cwd=self.cwd,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
        return done.stdout

    def ask(self, *words: str) -> object:
        program = str(Path(sys.executable).with_name("stateflow"))
        done = subprocess.run([program, *words], cwd=self.cwd, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def totals(self) -> list[tuple[object, ...]]:
        return sorted(tuple(row.values()) for row in FolderSink(self.folder / "home" / "out").rows())


@contextmanager
def _master(kind: str, folder: Path) -> Iterator[dict[str, str]]:
    if kind == "local":
        yield {}
        return
    with spark_cluster(folder / "cluster", {"PYTHONPATH": str(ROOT)}) as cluster:
        conf = {"spark.executor.memory": "700m", "spark.driver.host": "127.0.0.1"}
        yield {
            "storage.shared": "true",
            "spark.master": cluster.url,
            **{f"spark.conf.{name}": value for name, value in conf.items()},
        }


@pytest.mark.parametrize("kind", ["local", "cluster"])
def test_workers_import_the_job_file_and_modules_of_the_same_folder(kind: str, tmp_path: Path) -> None:
    job = _Folders(tmp_path)
    with _master(kind, tmp_path) as settings:
        job.settings |= settings
        job.deliver("a 3", "b 1")
        job.call("run")
        assert job.totals() == [("a", 300.0), ("b", 100.0)]
        first = job.ask("status", "--job-root", str(tmp_path / "root"), "--json")
        job.deliver("a 1")
        job.write(f"{job.version}/lazy/factors.py", "HALF = 5.0")
        job.call("run")
    assert job.totals() == [("a", 300.0), ("a", 1300.0), ("b", 100.0)]
    then = job.ask("status", "--job-root", str(tmp_path / "root"), "--json")
    assert isinstance(first, dict) and isinstance(then, dict)
    assert first["code"] and first["code"] != then["code"]
    assert [each["code"] for each in then["checkpoints"]] == [first["code"], then["code"]]


def test_another_folder_is_the_same_job_and_other_code_is_named(tmp_path: Path) -> None:
    job = _Folders(tmp_path)
    job.deliver("a 3", "b 1")
    job.call("run")
    shutil.rmtree(tmp_path / "home" / "out")
    shutil.move(tmp_path / job.version, tmp_path / "moved" / "v3")
    job.version = "moved/v3"
    job.call("run", root="other")
    roots = [str(tmp_path / name) for name in ("root", "other")]
    job.ask("diff", *roots, "--exit-code", "--json")
    statuses = [job.ask("status", "--job-root", root, "--json") for root in roots]
    assert isinstance(statuses[0], dict) and isinstance(statuses[1], dict)
    assert statuses[0]["code"] == statuses[1]["code"] and statuses[0]["checkpoint_id"] == 2
    # The same code in another process and at another place leads to the same state.
    replayed = json.loads(job.call("replay", "--batch", "2", "--json"))
    assert replayed["same"] and replayed["deviation"] == ""
    plan = json.loads(job.call("plan", "--no-spark", "--json", root="other"))
    assert plan["code"] == statuses[0]["code"] and plan["other_code"] == ""

    job.write(f"{job.version}/rows.py", _JOB["rows.py"].replace("2 *", "4 *"))
    replayed = json.loads(job.call("replay", "--batch", "2", "--json"))
    assert not replayed["same"] and statuses[0]["code"][:12] in replayed["deviation"]
    plan = json.loads(job.call("plan", "--no-spark", "--json", root="other"))
    assert plan["code"][:12] in plan["other_code"] and statuses[0]["code"][:12] in plan["other_code"]
