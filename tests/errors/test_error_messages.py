"""Mistakes in the job file, settings, machine and job root: each leads to an error that names what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from stateflow.checkpoint.log.documents import FORMAT_VERSION, JobFormat
from stateflow.checkpoint.log.manifest_files import seal, unseal
from stateflow.errors import BatchFailed, ConfigError, EnvironmentUnsupported, JobDefinitionError, WrongJobRoot
from stateflow.runtime.spark.session.requirements import (
    check_java,
    check_master,
    check_python,
    check_root,
    check_spark,
    java_major,
)
from stateflow.storage import MemoryStorage, PosixStorage
from stateflow.testing.sinks import FolderSink
from tests.support.cli_fixture import BUILD, JOB, STREAM, Case, CliFixture, check, contents, invoke
from tests.support.errors import raises, reported_error


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


def test_an_old_java_is_refused(cli: CliFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    java = cli.folder / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_292\"' >&2\n")
    java.chmod(0o700)
    monkeypatch.setenv("JAVA_HOME", str(cli.folder / "jdk"))
    facts = {"found": 8, "java": str(java)}
    check(cli, Case(lambda b: b.write(SPARK_JOB), EnvironmentUnsupported, facts, hint="JAVA_HOME"))


def test_the_version_of_java_is_read_from_its_output() -> None:
    assert java_major('java version "1.8.0_292"') == 8
    assert java_major('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21.0.1" 2023-10-17') == 21
    assert java_major("no such thing") == java_major("") == 0


@pytest.mark.parametrize("version", [(3, 10), (3, 14), (2, 7)])
def test_an_unsupported_python_is_refused(version: tuple[int, int]) -> None:
    with raises(EnvironmentUnsupported, found=f"{version[0]}.{version[1]}") as refused:
        check_python(version)
    assert "3.11" in refused.value.hint
    check_python((3, 11))
    check_python()


@pytest.mark.parametrize("version", ["3.5.1", "4.1.0", "4.3.0", "4.20.0"])
def test_an_unsupported_spark_is_refused(version: str) -> None:
    with raises(EnvironmentUnsupported, found=version) as refused:
        check_spark(version)
    assert "4.2.0" in refused.value.hint
    check_spark("4.2.0")


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
