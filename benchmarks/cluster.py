"""Measures drivers in a cluster: from the command that submits one to its first commit, against Spark's own submit.

Spark's query has the same shape, events and containers: a Python driver, one executor, and counts and sums by key. Its
first commit is the first entry of the ``commits`` folder of its checkpoint location; ours is the first COMMIT.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyspark

from benchmarks.data import Events, write_events
from benchmarks.results import write_result
from benchmarks.runs import JOB
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.clock import SystemClock
from stateflow.storage import open_storage
from stateflow.storage.paths import FORMAT
from tests.servers.kubernetes import PROGRAMS, kubernetes_cluster
from tests.servers.yarn import yarn_server
from tests.support.kubernetes_runs import IMAGE, Namespace, spark_image

_PROJECT = Path(__file__).parent.parent
_SPARK_SUBMIT = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
_PEER = Path(__file__).parent / "jobs" / "spark_first_commit.py"
_POLL_SECONDS = 0.02
_LONGEST = 300.0
_PAUSE_SECONDS = 5.0
PEERS = ("spark_agg", "tws_row")
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of Java in pods, for each program: those of the containers on YARN."""


@dataclass(frozen=True)
class Size:
    """How often each program is submitted, in turn, after once that is not counted."""

    rounds: int = 5


def run(folder: Path, size: Size = Size()) -> Path:
    """Measures on YARN, and on Kubernetes where ``make kubernetes`` has built it; writes ``cluster.json``."""
    write_events(folder / "events", Events(files=1, rows_per_file=10_000, keys=1_000))
    figures: dict[str, object] = {"rounds": size.rounds}
    with yarn_server(folder / "yarn") as yarn:
        figures["yarn"] = _figures(_measured(folder, "yarn", yarn.options(), yarn.variables, size))
    write_result("cluster", figures)
    if PROGRAMS.exists():
        with kubernetes_cluster(folder / "kubernetes", {IMAGE: spark_image()}) as cluster:
            namespace = Namespace.create(cluster, "benchmark", folder / "namespace")
            variables = {"KUBECONFIG": os.devnull}
            options = namespace.options(spark__driver__extraJavaOptions=_JAVA, spark__executor__extraJavaOptions=_JAVA)
            figures["kubernetes"] = _figures(_measured(folder, "pods", options, variables, size))
    return write_result("cluster", figures)


def _measured(
    folder: Path, where: str, options: Sequence[str], variables: Mapping[str, str], size: Size
) -> dict[str, list[float]]:
    """Submits each program in turn; returns the seconds to the first commit by name, without the first ones."""
    environment = {**os.environ, **variables, "PYTHONPATH": str(_PROJECT)}
    found: dict[str, list[float]] = {"stateflow": [], **{peer: [] for peer in PEERS}}
    for number in range(size.rounds + 1):
        for name, times in found.items():
            home = folder / f"{where}-{name.replace('_', '-')}-{number}"
            home.mkdir()
            program = _ours(folder, home, options) if name == "stateflow" else _spark(name, folder, home, options)
            times.append(_timed(*program, environment, home / "output"))
    return {name: times[1:] for name, times in found.items()}


def _figures(found: Mapping[str, Sequence[float]]) -> dict[str, object]:
    figures: dict[str, object] = {f"{name}_first_commit_s": _median(times) for name, times in found.items()}
    for peer in PEERS:
        pairs = [own - other for own, other in zip(found["stateflow"], found[peer], strict=True)]
        figures |= {f"difference_to_{peer}_s": _median(pairs), f"largest_difference_to_{peer}_s": round(max(pairs), 2)}
    return figures


def _median(seconds: Sequence[float]) -> float:
    return round(statistics.median(seconds), 2)


def _ours(folder: Path, home: Path, options: Sequence[str]) -> tuple[list[str], Callable[[], bool]]:
    root = home / "root"
    settings = {
        "job.events": folder / "events",
        "job.kind": "row_keys",
        "storage.shared": "yes",
        # As many partitions as Spark's query has.
        "parallelism": "2",
    }
    assignments = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    submit = [sys.executable, "-m", "stateflow", "submit", str(JOB), "--job-root", str(root), *assignments]
    storage, clock = open_storage(str(root)), SystemClock()

    def has_committed() -> bool:
        if storage.size(FORMAT) is None:
            return False
        head = JobRoot.open(storage, clock).log.read_head()
        return head is not None and head.checkpoint_id > head.entry.generation

    return [*submit, "--launch-id", home.name, "--", _SPARK_SUBMIT, *options], has_committed


def _spark(peer: str, folder: Path, home: Path, options: Sequence[str]) -> tuple[list[str], Callable[[], bool]]:
    arguments = [peer, str(folder / "events"), str(home / "checkpoint")]
    program, conf = str(_PEER), {"spark.yarn.submit.waitAppCompletion": "false", "spark.yarn.maxAppAttempts": "1"}
    if "k8s:" in " ".join(options):
        # Pods see this host's files. The manifest gives no rights to watch pods, or for volumes.
        program = f"local://{_PEER}"
        claims = [f"spark.kubernetes.driver.{verb}PersistentVolumeClaim" for verb in ("own", "reuse")]
        conf = dict.fromkeys((*claims, "spark.kubernetes.submission.waitAppCompletion"), "false")
    words = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    has_committed = (home / "checkpoint" / "commits" / "0").exists
    return [_SPARK_SUBMIT, *options, *words, program, *arguments], has_committed


def _timed(
    command: Sequence[str], has_committed: Callable[[], bool], environment: Mapping[str, str], output: Path
) -> float:
    """Returns the seconds from the start of a command to the first commit; waits for the end of the command."""
    with output.open("wb") as file:
        began = time.monotonic()
        process = subprocess.Popen(command, env=dict(environment), stdout=file, stderr=file)
        try:
            while not has_committed():
                assert not process.poll() and time.monotonic() - began < _LONGEST, output.read_text()[-4000:]
                time.sleep(_POLL_SECONDS)
            seconds = time.monotonic() - began
            process.wait(_LONGEST)
        finally:
            process.kill()
            process.wait()
    # What the driver still does would slow down the next one.
    time.sleep(_PAUSE_SECONDS)
    return seconds
