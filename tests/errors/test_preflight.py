"""Whatever a run refuses at its start, `check` and `plan` report earlier: one list, with a mistake for each check."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import invalidate_caches
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet

from stateflow.checkpoint.log.documents import FORMAT_VERSION, JobFormat
from stateflow.checkpoint.log.job_root import JobRoot, NewJob
from stateflow.checkpoint.log.manifest_files import seal, unseal
from stateflow.cli.main import main
from stateflow.clock import SystemClock
from stateflow.config import spark_versions
from stateflow.errors import (
    BatchFailed,
    ConfigError,
    EnvironmentUnsupported,
    JobDefinitionError,
    StateflowError,
    WrongJobRoot,
)
from stateflow.launch import prepare
from stateflow.runtime.planning.physical_plan import plan_job
from stateflow.runtime.preflight import CHECKS, Needs
from stateflow.runtime.spark.session.requirements import (
    check_classic,
    check_java,
    check_master,
    check_python,
    check_root,
    check_spark,
    java_major,
    warn_of_untested,
)
from stateflow.storage import MemoryStorage, PosixStorage, open_storage
from stateflow.testing.sinks import FolderSink
from tests.support.cli_fixture import BUILD, JOB, STREAM, Case, CliFixture, check, contents, invoke
from tests.support.errors import raises, reported_error

FILES = """
def build(env):
    rows = env.from_source(FileSource(HERE.parent / "input", schema=Row{options}), uid="rows"){more}
    rows.key_by("key").process(Sum(), output=Total, uid="sum").{end}
"""
DELTA = JOB.replace("import FileSource", "import DeltaSink, FileSource")
CLUSTER = {"spark.master": "spark://example:7077"}
COLUMNS = {"key": pa.string(), "number": pa.int64()}


@dataclass(frozen=True)
class Mistake:
    """Something that a start refuses.

    Attributes:
        check: the name of the check that finds it.
        has_run: whether the job has run before.
        of_root: whether it takes the job root to find it.
    """

    check: str
    code: str
    make: Callable[[CliFixture], object]
    has_run: bool = False
    of_root: bool = False


def _files(
    cli: CliFixture, options: str = "", more: str = "", end: str = 'sink_to(sink(), uid="totals")', **columns: Any
) -> Path:
    """Writes a job over a folder of Parquet files; returns the folder."""
    folder = cli.folder / "input"
    folder.mkdir()
    schema = pa.schema((COLUMNS | columns).items())
    parquet.write_table(schema.empty_table(), folder / "part-0.parquet")
    cli.write(FILES.format(options=options, more=more, end=end))
    return folder


def _over_files(
    options: str = "", more: str = "", settings: dict[str, str] | None = None, **given: Any
) -> Callable[[CliFixture], object]:
    def make(cli: CliFixture) -> None:
        _files(cli, options, more, **given)
        cli.settings.update(settings or {})

    return make


def _transform(function: str) -> Callable[[CliFixture], object]:
    return _over_files(more=f".transform(lambda df: {function})")


def _of_spark(arguments: str) -> Callable[[CliFixture], object]:
    source = f"__import__('stateflow').SparkSource({arguments}, schema=Row)"
    return lambda cli: cli.write(BUILD.replace("source()", source))


def _delta_sink(path: str, file: str) -> Callable[[CliFixture], object]:
    """A job that writes to a table whose folder contains a file from another program."""

    def make(cli: CliFixture) -> None:
        (cli.folder / file).parent.mkdir(exist_ok=True)
        (cli.folder / file).write_text("a,b")
        cli.write(BUILD.replace("sink()", f"DeltaSink(HERE.parent / '{path}')"), DELTA)

    return make


def _other_root(cli: CliFixture) -> None:
    """A new job root over a table that another job root writes to."""
    cli.run()
    cli.root = str(cli.folder / "other")


def _taken_over(cli: CliFixture) -> None:
    """Another job root, begun from a savepoint, continues the tables."""
    made = CliRunner().invoke(main, ["savepoint", "create", "--name", "last", "--job-root", cli.root, "--json"])
    begun = ["--from-savepoint", json.loads(made.stdout)["path"], "--tables", "continue"]
    former, cli.root = cli.root, str(cli.folder / "other")
    assert CliRunner().invoke(main, cli.command(*begun)).exit_code == 0
    cli.root = former


_CHECKSUM = "spark.conf.spark.sql.shuffle.orderIndependentChecksum.enabled"
MISTAKES = [
    Mistake("machine", "environment-unsupported", _over_files()),
    Mistake("spark-settings", "config", _over_files(settings={"spark.master": "local[2]"})),
    Mistake("spark-settings", "config", _over_files(settings={_CHECKSUM: "false"})),
    Mistake(
        "runner", "job-definition", lambda b: b.write(BUILD.replace(".key_by", ".transform(lambda df: df).key_by"))
    ),
    Mistake("sink-hosts", "config", _over_files(settings=CLUSTER)),
    Mistake("root-hosts", "config", _over_files(settings=CLUSTER, end="print()"), of_root=True),
    Mistake("source-settings", "config", lambda b: _files(b).rename(b.folder / "elsewhere")),
    Mistake("source-settings", "config", _over_files(", format='csv'", settings={"source.max_rows_per_batch": "5"})),
    Mistake("sink-tables", "sink-refused", _delta_sink("delta", "delta/someone-elses.csv")),
    Mistake("sink-tables", "config", _delta_sink("tables/delta", "tables")),
    Mistake("shared-tables", "config", _other_root, of_root=True),
    Mistake("job-root", "wrong-job-root", lambda b: b.settings.update(max_parallelism="64"), has_run=True),
    Mistake("job-root", "missing-file", lambda b: (Path(b.root) / "FORMAT").unlink(), has_run=True),
    Mistake("checkpoint", "config", lambda b: b.write(BUILD.replace('"sum"', '"another"')), has_run=True),
    Mistake("checkpoint", "sink-diverged", lambda b: (b.folder / "table").rename(b.folder / "moved"), has_run=True),
    Mistake("checkpoint-files", "missing-file", lambda b: b.state_files()[0].unlink(), has_run=True),
    Mistake("taken-over-tables", "fenced", _taken_over, has_run=True),
]
_NAMED = "sink_to(__import__('stateflow').DeltaSink(HERE.parent / 'named', register_as='nowhere.totals'), uid='named')"
ON_SPARK = [
    Mistake("source-columns", "schema-mismatch", _over_files(number=pa.float64())),
    Mistake("source-columns", "config", _of_spark("'rate-micro-batch', name='n', options={'rowsPerBatch': 'x'}")),
    Mistake("source-frames", "config", _over_files(", format='json', pathGlobFilter='['")),
    Mistake("catalog", "config", _over_files(end=_NAMED)),
    Mistake("transforms", "schema-mismatch", _transform("df.select('key')")),
    Mistake("transforms", "user-code", _transform("df.no_such_column")),
]

# Under spark-submit, settings do not know the master: the check "hosts" again.
_AGAIN = {"session-hosts"}

_NUMBERS = count(1)


def test_there_is_a_mistake_for_each_check() -> None:
    assert {m.check for m in MISTAKES} == {c.name for c in CHECKS if c.needs is not Needs.SPARK}
    assert {m.check for m in ON_SPARK} == {c.name for c in CHECKS if c.needs is Needs.SPARK} - _AGAIN


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: f"{m.check}-{m.code}")
def test_check_and_plan_find_what_a_run_refuses(
    cli: CliFixture, mistake: Mistake, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mistake.check == "machine":
        monkeypatch.setenv("JAVA_HOME", str(cli.folder))
    # Nothing of it takes Spark to find.
    _check(cli, mistake, "--no-spark")


@pytest.mark.spark
@pytest.mark.usefixtures("spark_session")
@pytest.mark.parametrize("mistake", ON_SPARK, ids=lambda m: f"{m.check}-{m.code}")
def test_check_and_plan_ask_spark_what_only_spark_knows(cli: CliFixture, mistake: Mistake) -> None:
    # Spark takes a file of one name once, and the session is that of all tests.
    cli.job = cli.job.rename(cli.job.with_name(f"job_{next(_NUMBERS)}.py"))
    refused = _check(cli, mistake)
    if mistake.check == "transforms":
        assert f"{cli.job.name}:" in str(refused.facts["transform"])
        if mistake.code == "schema-mismatch" and "column" in refused.facts:
            assert "schema=" in refused.hint and "output=" in refused.hint
    # Without Spark, what was not checked is listed instead.
    without = _plan(cli, "--no-spark")
    assert without["problems"] == [] and without["unchecked"]


def _check(cli: CliFixture, mistake: Mistake, *options: str) -> StateflowError:
    if mistake.has_run:
        cli.run()
    else:
        _new_root(cli)
    mistake.make(cli)
    before = contents(Path(cli.root))
    found = [_plan(cli, "--job-root", cli.root, *options)["problems"]]
    if "FORMAT" in before:
        found.append(_report(cli, *options))
    if not (mistake.has_run or mistake.of_root):
        found.append(_plan(cli, *options)["problems"])
    assert contents(Path(cli.root)) == before
    with pytest.raises(StateflowError) as refused:
        cli.run()
    error = refused.value
    assert error.code == mistake.code
    problem = {"code": error.code, "message": error.sentence, "hint": error.hint}
    assert all(problem in problems for problems in found)
    return error


def _new_root(cli: CliFixture) -> None:
    """A job root without a checkpoint."""
    start = prepare(cli.job, layers=(dict(cli.settings),)).start
    new = NewJob(start.settings.name, start.settings.max_parallelism, plan_job(start.graph, 2).key_types)
    JobRoot.create_or_open(open_storage(cli.root), SystemClock(), new, "test")


def _invoke(cli: CliFixture, command: str, *more: str) -> Result:
    sets = [part for name, value in cli.settings.items() for part in ("--set", f"{name}={value}")]
    return CliRunner().invoke(main, [command, str(cli.job), *sets, *more, "--json"])


def _plan(cli: CliFixture, *more: str) -> dict[str, Any]:
    shown = _invoke(cli, "explain", *more)
    found: dict[str, Any] = json.loads(shown.stdout)
    assert shown.exit_code == (20 if found["problems"] else 0)
    return found


def _report(cli: CliFixture, *more: str) -> Any:
    shown = _invoke(cli, "check", "--against", cli.root, *more)
    if shown.exit_code == 20:
        return json.loads(shown.stdout)["problems"]
    # What is damaged so that nothing can be compared is an error with a code of its own.
    (line,) = (line for line in shown.stderr.splitlines() if line.startswith("error ["))
    code, _, message = line.removeprefix("error [").partition("]: ")
    return [{"code": code, "message": message, "hint": shown.stderr.partition("hint: ")[2].strip()}]


# -- mistakes that a run names ----------------------------------------------------------------------------------------


def _job(build: str, /, *shown: str, head: str = JOB, hint: str = "", **facts: object) -> Case:
    return Case(lambda cli: cli.write(build, head), JobDefinitionError, facts, shown, hint)


def _setting(given: str, text: str, /, hint: str = "", **facts: object) -> Case:
    return Case(lambda cli: cli.settings.update({given: text}), ConfigError, facts, hint=hint)


CASES = {
    "no job file": Case(lambda b: b.job.unlink(), JobDefinitionError, shown=("job.py",)),
    "no build": _job("", "job.py", hint="build(env"),
    "build without an argument": _job("def build(): pass", found="build()", hint="build(env"),
    "a name that is not Python's": Case(
        lambda b: setattr(b, "job", b.job.rename(b.job.with_name("my-job.py"))),
        JobDefinitionError,
        shown=("my-job.py",),
    ),
    "does not compile": _job("def build(env:", "SyntaxError", "job.py"),
    "does not import": _job(BUILD, "no_such_package", "job.py", head="import no_such_package\n"),
    "build raises": _job("def build(env):\n    {}['nothing']", "KeyError: 'nothing'", "job.py:"),
    "reads nothing": _job("def build(env): pass", hint="from_source"),
    "a uid twice": _job(STREAM + "rows.sink_to(sink(), uid='rows')", uid="rows"),
    "no such key column": _job(STREAM + "rows.key_by('kye')", column="kye", called="key_by", hint="key, number"),
    "no such order column": _job(STREAM + "rows.key_by('key', order_by=['time'])", column="time", called="order_by"),
    "an expression without Spark": _job(STREAM + "rows.transform(lambda df: df).sink_to(sink(), uid='out')", uid="out"),
    "an unknown setting": _setting("paralelism", "2", name="paralelism", hint="parallelism"),
    "a value of a setting": _setting("run.max_duration", "1e400h", name="run.max_duration", value="1e400h"),
    "a name of a job": _setting("name", "../x", name="../x"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_mistake_is_named_and_changes_nothing(cli: CliFixture, case: Case) -> None:
    check(cli, case)


@pytest.mark.parametrize("name", ["a uid twice", "reads nothing"])
def test_the_command_line_reports_a_mistake_with_code_facts_and_hint(cli: CliFixture, name: str) -> None:
    case = CASES[name]
    case.make(cli)
    before = cli.on_disk()
    ended = invoke(*cli.command("--result-file", str(cli.folder / "result.json")))
    assert ended.exit_code == 2
    reported = reported_error(ended.stderr)
    assert reported.code == case.error.code and case.facts.items() <= reported.facts.items()
    assert all(datum in ended.stderr for datum in case.shown) and "Traceback" not in ended.stderr

    result = json.loads((cli.folder / "result.json").read_text())
    (cli.folder / "result.json").unlink()
    assert result["status"] == "failed" and result["error"]["code"] == case.error.code
    assert result["error"]["hint"] and result["error"]["hint"] in ended.stderr
    assert cli.on_disk() == before


FAILING_SOURCE = """
class Failing(ScriptedSource):
    def read(self, position, limits):
        if position is not None:
            raise ConnectionResetError(104, "the database went away")
        return super().read(position, limits)

def source():
    return Failing(Row, ROWS, HERE.parent / "ledger.json", slice_rows=4)
"""


def test_a_source_that_fails_is_named_and_costs_nothing(cli: CliFixture) -> None:
    cli.write(FAILING_SOURCE + BUILD)
    ended = invoke(*cli.command())
    assert ended.exit_code == BatchFailed.exit_code and "Traceback" not in ended.stderr
    facts = reported_error(ended.stderr).facts
    assert facts["source"] == "rows" and "job.py:" in facts["where"]
    assert facts["reason"].startswith("ConnectionResetError") and "the database went away" in facts["reason"]
    cli.write(BUILD)
    cli.run()
    assert len(FolderSink(cli.folder / "table").rows()) == 12


# -- Java, Python or Spark of another version -------------------------------------------------------------------------

SPARK_JOB = "def build(env):\n    env.from_source(FileSource(HERE, schema=Row), uid='rows').sink_to(sink(), uid='out')"


def test_missing_java_is_an_unsupported_environment(cli: CliFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = cli.folder / "empty"
    empty.mkdir()
    monkeypatch.setenv("JAVA_HOME", str(empty))
    case = Case(lambda b: b.write(SPARK_JOB), EnvironmentUnsupported, {"java_home": str(empty)}, hint="openjdk-17-jre")
    check(cli, case)
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(empty))
    with raises(EnvironmentUnsupported, java_home=""):
        check_java()


def _java(folder: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    java = folder / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o700)
    monkeypatch.setenv("JAVA_HOME", str(folder / "jdk"))
    return java


def test_an_old_java_is_refused(cli: CliFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    java = _java(cli.folder, "1.8.0_292", monkeypatch)
    facts = {"found": 8, "java": str(java)}
    check(cli, Case(lambda b: b.write(SPARK_JOB), EnvironmentUnsupported, facts, hint="JAVA_HOME"))


def test_the_version_of_java_is_read_from_its_output() -> None:
    assert java_major('java version "1.8.0_292"') == 8
    assert java_major('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21.0.1" 2023-10-17') == 21
    assert java_major("no such thing") == java_major("") == 0


@pytest.mark.parametrize("version", [(3, 10), (2, 7)])
def test_an_unsupported_python_is_refused(version: tuple[int, int]) -> None:
    with raises(EnvironmentUnsupported, found=f"{version[0]}.{version[1]}") as refused:
        check_python(version)
    assert "3.11" in refused.value.hint
    check_python((3, 11))
    check_python((3, 14))
    check_python()


@pytest.mark.parametrize("version", ["3.5.1", "3.99.0", "5.0.0", "", "unknown"])
def test_an_unsupported_spark_is_refused(version: str) -> None:
    with raises(EnvironmentUnsupported, found=version) as refused:
        check_spark(version)
    assert "4.2.0" in refused.value.hint


@pytest.mark.parametrize(
    ("version", "tested"),
    [("4.2.0", True), ("4.0.5", True), ("4.0.9", False), ("4.2.9", False), ("4.9.0", False), ("4.0.1-amzn-0", False)],
)
def test_a_spark_that_was_not_tested_is_a_warning(version: str, tested: bool) -> None:
    check_spark(version)
    warnings = spark_versions.warn_of_untested(version)
    assert (warnings == ()) == tested
    assert all(version in warning and "4.2.0" in warning for warning in warnings)


def test_a_python_and_a_java_that_were_not_tested_are_warnings() -> None:
    assert warn_of_untested(17, (3, 11)) == warn_of_untested(21, (3, 13)) == ()
    assert [w.split(" was not")[0] for w in warn_of_untested(26, (3, 14))] == ["Python 3.14", "Java 26"]


def test_a_plan_warns_of_a_java_that_was_not_tested(cli: CliFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    java = _java(cli.folder, "26.0.1", monkeypatch)
    assert check_java().major == 26
    cli.write(SPARK_JOB)
    assert any(w.startswith("Java 26 was not tested") for w in prepare(cli.job).warnings), java


@pytest.mark.parametrize(
    ("variable", "value", "settings"),
    [
        ("SPARK_REMOTE", "sc://host:15002", {}),
        ("SPARK_CONNECT_MODE_ENABLED", "1", {}),
        ("PYSPARK_SUBMIT_ARGS", "--remote sc://host pyspark-shell", {}),
        ("spark.remote", "", {"spark.conf.spark.remote": "sc://host"}),
        ("spark.api.mode", "", {"spark.conf.spark.api.mode": "connect"}),
        ("spark.master", "", {"spark.conf.spark.master": "sc://host"}),
    ],
)
def test_spark_connect_is_refused_before_spark_starts(
    cli: CliFixture, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, settings: dict[str, str]
) -> None:
    if value:
        monkeypatch.setenv(variable, value)
    with raises(EnvironmentUnsupported, setting=variable) as refused:
        check_classic({name.removeprefix("spark.conf."): text for name, text in settings.items()})
    assert "spark.master=local" in refused.value.hint

    def make(b: CliFixture) -> None:
        b.settings.update(settings)
        b.write(SPARK_JOB)

    check(cli, Case(make, EnvironmentUnsupported, {"setting": variable}, hint="spark.master"))


def test_the_client_of_spark_connect_is_no_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "pyspark"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "version.py").write_text('__version__: str = "4.0.1-amzn-0"\n')
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    invalidate_caches()
    with raises(EnvironmentUnsupported, package="pyspark-client", folder=str(package)):
        spark_versions.find_release()
    (package / "core").mkdir()
    (package / "core" / "context.py").touch()
    # A distribution of Spark, which pip has not installed.
    assert spark_versions.find_release() == "4.0.1-amzn-0"
    monkeypatch.setattr(sys, "path", [])
    with raises(EnvironmentUnsupported, package="pyspark"):
        spark_versions.find_release()


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]"])
def test_a_master_without_task_retries_is_refused(master: str) -> None:
    with raises(ConfigError, master=master) as refused:
        check_master(master)
    assert "local[N,4]" in refused.value.hint
    check_master("local[2,4]")
    check_master("yarn")


# -- job roots --------------------------------------------------------------------------------------------------------

UNUSABLE = {
    "below a file": Case(lambda b: setattr(b, "root", str(b.job / "root")), ConfigError, shown=("job.py/root",)),
    "at a file": Case(lambda b: setattr(b, "root", str(b.job)), ConfigError, shown=("job.py",)),
    # A place where even root may not make folders.
    "read-only": Case(
        lambda b: setattr(b, "root", "/sys/stateflow-root"),
        ConfigError,
        {"path": "/sys/stateflow-root"},
        shown=("reason=",),
    ),
    "another scheme": Case(
        lambda b: setattr(b, "root", "hdfs://name/root"), ConfigError, {"uri": "hdfs://name/root"}, hint="webhdfs://"
    ),
}


@pytest.mark.parametrize("case", UNUSABLE.values(), ids=UNUSABLE)
def test_a_root_that_cannot_be_used_is_refused(cli: CliFixture, case: Case) -> None:
    check(cli, case)


def test_a_root_on_this_host_is_refused_if_tasks_run_on_other_hosts(tmp_path: Path) -> None:
    with raises(ConfigError, master="spark://example:7077") as refused:
        check_root(PosixStorage(tmp_path / "root"), "spark://example:7077", False)
    assert "storage.shared=true" in refused.value.hint
    check_root(PosixStorage(tmp_path / "root"), "spark://example:7077", True)
    check_root(PosixStorage(tmp_path / "root"), "local[2,4]", False)
    with raises(ConfigError, root="memory://x"):
        check_root(MemoryStorage("memory://x"), "local[2,4]", False)
    assert contents(tmp_path) == {}


# -- roots of another job ---------------------------------------------------------------------------------------------


def _set(name: str, value: str) -> Callable[[CliFixture], object]:
    return lambda cli: cli.settings.update({name: value})


def _write(build: str, head: str = JOB) -> Callable[[CliFixture], object]:
    return lambda cli: cli.write(build, head)


def _newer_format(cli: CliFixture) -> None:
    path = Path(cli.root, "FORMAT")
    document, _ = unseal(path.read_bytes(), JobFormat, "FORMAT")
    path.write_bytes(seal(msgspec.structs.replace(document, version=99))[0])


CHANGED = {
    "another job": Case(_set("name", "other"), WrongJobRoot, {"found": "job", "wanted": "other"}, shown=("root=",)),
    "another max parallelism": Case(
        _set("max_parallelism", "64"), WrongJobRoot, {"found": 128, "wanted": 64}, hint="max_parallelism"
    ),
    "other key types": Case(
        _write(BUILD.replace('key_by("key")', 'key_by("number")')),
        WrongJobRoot,
        {"uid": "sum", "found": ["string"], "wanted": ["bigint"]},
    ),
    "a newer format": Case(_newer_format, WrongJobRoot, {"found": 99, "known": FORMAT_VERSION}),
    "too high a parallelism": Case(_set("parallelism", "129"), ConfigError, {"value": 129, "max_parallelism": 128}),
    "an operator is gone": Case(
        _write(STREAM + "rows.sink_to(sink(), uid='totals')"), ConfigError, {"uids": ["sum"]}, hint="--drop"
    ),
    "a source has another uid": Case(
        _write(BUILD.replace('uid="rows"', 'uid="events"')), ConfigError, {"found": ["rows"], "wanted": ["events"]}
    ),
    "a source reads something else": Case(
        _write(BUILD, JOB.replace("Row", "Event")),
        ConfigError,
        {"uid": "rows", "before": "ScriptedSource[Row]", "now": "ScriptedSource[Event]"},
        hint="stateflow source relocate",
    ),
}


@pytest.mark.parametrize("case", CHANGED.values(), ids=CHANGED)
def test_a_job_that_does_not_fit_its_root_is_refused(ran: CliFixture, case: Case) -> None:
    check(ran, case)
