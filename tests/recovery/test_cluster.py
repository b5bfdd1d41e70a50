"""A real cluster: a standalone master and two workers as processes, executors and workers killed, speculation on."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.recovery.flights import FlightsBox
from tests.recovery.process import ROOT, Running, spawn, wait_for
from tests.recovery.strikes import check_at_rest
from tests.servers.running import s3_server
from tests.servers.spark import Cluster, spark_cluster

pytestmark = [pytest.mark.spark]

_SETTINGS = {
    "storage__shared": "true", "checkpoints__asynchronous": "yes", "checkpoints__collect_every": 3,
    "spark__conf__spark.speculation": "true", "spark__conf__spark.speculation.multiplier": "1.1",
    "spark__conf__spark.speculation.quantile": "0.4", "spark__conf__spark.speculation.interval": "20ms",
    "spark__conf__spark.executor.memory": "700m", "spark__conf__spark.task.maxFailures": "20",
    "spark__conf__spark.driver.host": "127.0.0.1",
}  # fmt: skip


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def _cluster(stack: ExitStack, folder: Path, **variables: str) -> Cluster:
    return stack.enter_context(spark_cluster(folder / "cluster", {"PYTHONPATH": str(ROOT), **variables}))


def _box(stack: ExitStack, folder: Path, cluster: Cluster, **more: Any) -> FlightsBox:
    settings = {**_SETTINGS, "spark__master": cluster.url}
    box = FlightsBox(folder / "job", settings, job="small_flights", launcher=spawn, **more)
    stack.callback(box.end_all)
    return box


def _batches(run: Running) -> int:
    return run.errors.count(" committed ")


def _await_batches(run: Running, number: int) -> None:
    wait_for(lambda: _batches(run) >= number or run.poll() is not None, lambda: f"{number} batches of {run}")


def _strike(cluster: Cluster, dice: random.Random) -> None:
    """SIGKILL of an executor, which may be gone by then."""
    there = cluster.executors()
    if there:
        try:
            dice.choice(there).kill()
        except psutil.NoSuchProcess:
            return


def _finish(box: FlightsBox) -> None:
    """A run ends well, or by an error that a retry mends."""
    for _ in range(4):
        ended = box.run()
        assert ended.code in (0, 5), str(ended)
        if ended.code == 0:
            return
    pytest.fail("no run ended well")


@pytest.mark.slow
def test_executors_and_a_worker_are_killed(stack: ExitStack, tmp_path: Path) -> None:
    dice = random.Random(1)
    cluster = _cluster(stack, tmp_path)
    box = _box(stack, tmp_path, cluster)
    box.deliver(8)
    run = box.start()
    for batches in (1, 3):
        _await_batches(run, batches)
        _strike(cluster, dice)
    _await_batches(run, 5)
    cluster.kill_worker(0)
    cluster.add_worker()
    assert run.wait(run.family).code in (0, 5), str(run)
    box.deliver(10)
    _finish(box)
    check_at_rest(box)


@pytest.mark.slow
def test_a_job_root_on_s3(stack: ExitStack, tmp_path: Path) -> None:
    variables = stack.enter_context(s3_server(tmp_path / "s3", "bucket"))
    # Executors get the credentials from the driver, never from their own environment.
    cluster = _cluster(stack, tmp_path)
    root = tmp_path / "s3" / "data" / "bucket" / "job"
    box = _box(stack, tmp_path, cluster, root_folder=root, address="s3://bucket/job", variables=variables)
    box.deliver(5)
    run = box.start()
    _await_batches(run, 2)
    _strike(cluster, random.Random(2))
    assert run.wait(run.family).code in (0, 5), str(run)
    box.deliver(7)
    _finish(box)
    check_at_rest(box)


@pytest.mark.slow
def test_many_executors_and_workers_are_killed(stack: ExitStack, tmp_path: Path) -> None:
    dice = random.Random(3)
    cluster = _cluster(stack, tmp_path)
    box = _box(stack, tmp_path, cluster)
    strikes: list[Callable[[], None]] = [lambda: _strike(cluster, dice)] * 12 + [
        lambda: _replace(cluster)
    ] * 4
    dice.shuffle(strikes)
    delivered = 0
    while strikes:
        delivered += 6
        box.deliver(delivered)
        run = box.start()
        while strikes and run.poll() is None:
            _await_batches(run, _batches(run) + dice.randrange(1, 3))
            strikes.pop()()
        assert run.wait(run.family).code in (0, 5), str(run)
    box.deliver(delivered + 2)
    _finish(box)
    check_at_rest(box)


def _replace(cluster: Cluster) -> None:
    cluster.kill_worker(len(cluster.workers) - 1)
    cluster.add_worker()


@pytest.mark.slow
def test_executors_whose_python_has_nothing_get_a_packed_environment(
    stack: ExitStack, tmp_path: Path
) -> None:
    """As the guide says: their own Python has neither stateflow nor rocksdict."""
    bare = Path(sys.executable).resolve()
    for package in ("stateflow", "rocksdict"):
        looked = subprocess.run(
            [bare, "-c", f"import {package}"], cwd="/", env={}, capture_output=True, check=False
        )
        assert b"ModuleNotFoundError" in looked.stderr
    archive = _packed(tmp_path, bare)
    nothing = {"PYTHONPATH": "", "PATH": "/usr/local/bin:/usr/bin:/bin", "VIRTUAL_ENV": ""}
    cluster = stack.enter_context(spark_cluster(tmp_path / "cluster", nothing))
    box = _box(stack, tmp_path, cluster)
    box.settings = {
        **box.settings, "spark__conf__spark.archives": f"{archive}#environment",
        "spark__conf__spark.pyspark.python": "./environment/bin/python",
    }  # fmt: skip
    box.deliver(4)
    run = box.start()
    _await_batches(run, 2)
    _strike(cluster, random.Random(4))
    assert run.wait(run.family).code in (0, 5), str(run)
    box.deliver(6)
    _finish(box)
    check_at_rest(box)
    assert list((tmp_path / "cluster").glob("worker-*/app-*/*/environment/bin/python")), (
        "nothing was unpacked"
    )


_NEEDED = {
    "arro3-core", "click", "deltalake", "deprecated", "markdown-it-py", "mdurl", "msgspec", "numpy",
    "opentelemetry-api", "pandas", "pyarrow", "pygments", "python-dateutil", "pytz", "rich", "rocksdict",
    "typing-extensions", "tzdata", "wrapt", "xxhash",
}  # fmt: skip
"""What tasks import, and what that needs; pyspark is Spark's own part."""


def _packed(folder: Path, python: Path) -> Path:
    """An archive with all that tasks need."""
    home, archive = folder / "environment", folder / "environment.tar.gz"
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    pins = [pin for line in lines if (pin := line.partition(";")[0].strip()).partition("==")[0] in _NEEDED]
    assert len(pins) == len(_NEEDED), sorted(pins)
    subprocess.run([python, "-m", "venv", home], check=True)
    pip = [home / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", *pins, "venv-pack2==0.9.2", "setuptools==80.9.0", "wheel"], check=True)
    # A build leaves files where it is made.
    source = folder / "source"
    for name in ("stateflow", "plugins"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", source], check=True)
    pack = [home / "bin" / "venv-pack", "-p", home, "-o", archive, "--compress-level", "1"]
    subprocess.run(pack, check=True, capture_output=True)
    return archive
