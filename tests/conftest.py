"""Hypothesis profiles, the order of tests, how long they took, and what tests of several folders need."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, settings
from syrupy.assertion import SnapshotAssertion
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from tests.servers.running import CANARY, JDBC_JARS, files_with
from tests.support.screens import ScreenFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The conformance suites are part of the library, and still say what they compared.
pytest.register_assert_rewrite(
    "stateflow.testing.conformance.storage",
    "stateflow.testing.conformance.state_backend",
    "stateflow.testing.conformance.sink",
    "stateflow.testing.conformance.sink_table",
)

# Tests do not choose their own numbers of examples. `ci` runs the same examples every time; `nightly` looks further.
# How long it takes to draw examples depends on the machine, not on the test.
_ANY_SPEED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "ci", _ANY_SPEED, max_examples=60, stateful_step_count=15, derandomize=True, report_multiple_bugs=False
)
settings.register_profile("nightly", _ANY_SPEED, max_examples=3000, stateful_step_count=80, print_blob=True)
# A planted bug only has to fail a test: a small example of that would take minutes to find.
settings.register_profile("bugs", settings.get_profile("ci"), phases=(Phase.explicit, Phase.generate))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

_SPARK = {
    # Python workers import the classes of tests.
    "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[1]),
    "spark.sql.timeType.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    # A host that is suspended for two minutes would cost it its only executor, and later itself.
    "spark.storage.blockManagerHeartbeatTimeoutMs": "365d",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    "spark.sql.shuffle.partitions": "2",
    # Compiling a query takes longer than running it over a few rows.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    # VACUUM lists a folder in as many tasks: 10,000 by default.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
}
_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",
}
"""Settings for a version of Spark that Delta has JARs for."""


_LONG = 2.0
"""Seconds above which a mark of a test says what takes the time."""

_RUNNING_JOBS = ("tests/recovery/", "tests/scoreboard/", "tests/airflow/")
"""Folders whose tests run jobs or commands as processes, kill them and run them again."""

_REASONS = {"slow", "long", "spark", "airflow", "setup"}
"""Marks that say what takes a test its time."""


class _Durations:
    """Adds up set-up, call and clean-up of each test, of all workers, for ``build/durations.json``."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._explained: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if _REASONS & report.keywords.keys():
            self._explained.add(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Names long tests without a mark: a remark, since how long a test takes depends on the machine as well."""
        long = {name: seconds for name, seconds in self._seconds.items() if seconds > _LONG}
        for name in sorted(long.keys() - self._explained, key=lambda name: -long[name]):
            terminalreporter.write_line(f"{long[name]:.1f} s, and no mark says why: {name}")

    def pytest_sessionfinish(self) -> None:
        """Replaces the tests of this run in the file; those that did not run keep their figures."""
        file = Path(__file__).parents[1] / "build" / "durations.json"
        known = json.loads(file.read_text()) if file.exists() else {}
        known |= {name: round(seconds, 3) for name, seconds in self._seconds.items()}
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(dict(sorted(known.items())), indent=0) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the plugin that records durations.

    With ``-k`` and ``-m`` together, syrupy takes golden files of tests that do not run for unused ones.
    """
    if config.option.keyword and config.option.markexpr:
        config.option.disable_unused_snapshots = True
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Durations())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that use Spark come first, then long tests of fuzzing: both take minutes, and one of them at the end would
    let the other workers wait for it."""
    for item in items:
        if item.nodeid.startswith(_RUNNING_JOBS):
            item.add_marker(pytest.mark.long(reason="runs jobs as processes"))
    _check_reasons(items)
    slow_ones = {item.path for item in items if item.get_closest_marker("spark") or "spark" in item.nodeid}
    items.sort(key=lambda item: (item.path not in slow_ones, not _is_long(item.nodeid)))


def _check_reasons(items: list[pytest.Item]) -> None:
    marks = [(item, mark) for item in items for name in ("slow", "long") for mark in item.iter_markers(name)]
    if without := sorted({item.nodeid.partition("[")[0] for item, mark in marks if not mark.kwargs.get("reason")}):
        raise pytest.UsageError(f"pytest.mark.slow and long need a reason: {', '.join(without)}")


def _is_long(nodeid: str) -> bool:
    """Whether a test is one of those that take minutes each, and share nothing with others of their file."""
    return nodeid.startswith("tests/fuzz/") and nodeid.endswith("-20000]")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Gives a worker all tests of a file, but long tests one by one."""
    if config.getvalue("dist") != "loadfile":
        return None
    scheduler = LoadFileScheduling(config, log)
    scheduler._split_scope = lambda nodeid: nodeid if _is_long(nodeid) else nodeid.split("::", 1)[0]
    return scheduler


@pytest.fixture(scope="session", autouse=True)
def _no_secret_is_written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Looks through everything that tests wrote: job roots, tables, logs, results, Spark's own files."""
    yield
    assert files_with(CANARY, tmp_path_factory.getbasetemp()) == []


@pytest.fixture(autouse=True)
def _no_failpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failpoint in the environment of the caller is not for the tests' own process."""
    monkeypatch.delenv("STATEFLOW_FAILPOINT", raising=False)
    monkeypatch.delenv("STATEFLOW_FAILPOINT_ONCE", raising=False)


@pytest.fixture(autouse=True)
def _no_lineage_of_other_tests() -> Iterator[None]:
    """OpenLineage's client writes its configuration into the environment, and runs of later tests would inherit it."""

    def names() -> set[str]:
        return {name for name in os.environ if name.startswith("OPENLINEAGE")}

    before = names()
    yield
    for name in names() - before:
        del os.environ[name]


@pytest.fixture
def golden(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    """The golden file of a test: ``assert normalized(shown) == golden``; ``golden(name="…")`` for several in a test."""
    return snapshot.use_extension(ScreenFile)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A folder on another file system than `tmp_path`."""
    for parent in ("/dev/shm", "/var/tmp", "/tmp"):
        if os.access(parent, os.W_OK) and os.stat(parent).st_dev != os.stat(tmp_path).st_dev:
            with tempfile.TemporaryDirectory(dir=parent) as folder:
                yield Path(folder)
            return
    pytest.skip("there is no second file system")


@pytest.fixture(scope="session")
def spark_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark session for tests that only compute with it; they are marked ``spark``.

    A process has one session. Delta's JARs and PostgreSQL's driver are in it as well, so that it serves the tests after
    it.
    """
    from pyspark.sql import SparkSession

    from stateflow.config.spark_versions import running_version

    session = SparkSession.getActiveSession()
    if session is None:
        folder: Path = tmp_path_factory.mktemp("spark")
        builder = SparkSession.builder.master("local[2,4]").appName("tests")
        jars = sorted(map(str, (Path(sys.prefix) / "jars").glob("*.jar")))
        has_delta = bool(running_version().delta_package)
        if has_delta and not jars:
            pytest.fail("Delta's JARs are not in .venv/jars: run scripts/fetch_jars.py")
        for key, value in {**_SPARK, **(_DELTA if has_delta else {})}.items():
            builder = builder.config(key, value)
        builder = builder.config("spark.jars", ",".join([*jars, *JDBC_JARS]))
        session = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse")).getOrCreate()
    yield session
    executors = session.sparkContext._jsc.sc().getExecutorMemoryStatus().size()
    try:
        # Later tests of the process would fail, minutes afterwards, and not say why.
        assert executors == 1, (
            "a test made Spark drop its executor, perhaps by deleting shuffle files: see the tests above"
        )
    finally:
        session.stop()


@pytest.fixture
def harnesses_on_spark(spark_session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each harness that the test makes runs its batches on Spark."""
    from stateflow.testing.harness.batches import HarnessBatchRunner
    from tests.support.spark_harness import SparkRuntime

    monkeypatch.setattr(HarnessBatchRunner, "runtime", SparkRuntime(spark_session, tmp_path))
