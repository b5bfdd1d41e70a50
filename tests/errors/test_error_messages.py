"""What a user is told, case by case: an error of its own kind, the thing by name, what to do, and nothing changed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from stateflow.checkpoint.documents import JobFormat
from stateflow.checkpoint.envelope import seal, unseal
from stateflow.environment import StreamExecutionEnvironment, declare
from stateflow.errors import (
    ConfigError,
    CorruptFile,
    EnvironmentUnsupported,
    JobDefinitionError,
    MissingFile,
    SchemaMismatch,
    StateflowError,
    WrongJobRoot,
)
from stateflow.runtime.versions import check_java, check_python, check_spark, java_major
from stateflow.storage import MemoryStorage, PosixStorage
from tests.errors.kit import BUILD, JOB, Bench, contents, stateflow


@dataclass(frozen=True)
class Case:
    """A mistake, and what must be said about it."""

    make: Callable[[Bench], object]
    error: type[StateflowError]
    code: str
    says: tuple[str, ...]


def check(bench: Bench, case: Case) -> None:
    """Makes the mistake, runs the job, compares."""
    case.make(bench)
    before = bench.on_disk()
    with pytest.raises(StateflowError) as raised:
        bench.run()
    error = raised.value
    assert (type(error), error.code) == (case.error, case.code)
    assert [word for word in case.says if word not in str(error)] == []
    assert error.hint and error.exit_code != 0
    assert bench.on_disk() == before


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the job ran once."""
    bench = Bench(tmp_path_factory.mktemp("finished"))
    bench.run()
    return bench.folder


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def ran(tmp_path: Path, finished: Path) -> Bench:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("code"))
    return Bench(tmp_path)


# -- the job file and its graph -----------------------------------------------------------------------------------


def _job(build: str, *says: str, head: str = JOB) -> Case:
    return Case(lambda bench: bench.write(build, head), JobDefinitionError, "job-definition", says)


_STREAM = "def build(env):\n    rows = env.from_source(source(), uid='rows')\n    "
JOBS = {
    "no job file": Case(lambda b: b.job.unlink(), JobDefinitionError, "job-definition", ("no such job file", "job.py")),
    "no build": _job("", "no build(env)", "job.py"),
    "build without an argument": _job("def build(): pass", "must take the environment"),
    "a name that is not Python's": Case(
        lambda b: setattr(b, "job", b.job.rename(b.job.with_name("my-job.py"))), JobDefinitionError, "job-definition",
        ("my-job.py",),
    ),
    "does not compile": _job("def build(env:", "does not import", "SyntaxError", "job.py"),
    "does not import": _job(BUILD, "does not import", "no_such_package", "job.py", head="import no_such_package\n"),
    "build raises": _job("def build(env):\n    {}['nothing']", "build raised KeyError", "nothing", "job.py:"),
    "reads nothing": _job("def build(env): pass", "reads nothing"),
    "does nothing": _job(_STREAM + "pass", "does nothing"),
    "a parameter is missing": _job(_STREAM + "env.parameter('tables')", "'tables'", "--set job.tables="),
    "a source without uid": _job("def build(env):\n    env.from_source(source())", "source has no uid"),
    "an operator without uid": _job(_STREAM + "rows.key_by('key').process(Sum(), output=Total)", "operator has no uid"),
    "a sink without uid": _job(_STREAM + "rows.sink_to(sink())", "sink has no uid"),
    "a uid twice": _job(_STREAM + "rows.sink_to(sink(), uid='rows')", "uid is used twice", "'rows'"),
    "a uid that is no name": Case(
        lambda b: b.write(_STREAM + "rows.sink_to(sink(), uid='../x')"), ConfigError, "config",
        ("uid of a sink", "../x"),
    ),
    "no such key column": _job(_STREAM + "rows.key_by('kye')", "no such column", "'kye'", "key, number"),
    "no such order column": _job(_STREAM + "rows.key_by('key', order_by=['time'])", "no such column", "'time'"),
    "a second source": _job(
        _STREAM + "more = env.from_source(source(), uid='more')\n    more.sink_to(sink(), uid='out')", "one source",
        "'more'",
    ),
    "an expression without Spark": _job(
        _STREAM + "rows.transform(lambda df: df).sink_to(sink(), uid='out')", "without Spark", "'out'"
    ),
    "a class without columns": _job(
        _STREAM + "rows.key_by('key').process(Sum(), output=dict, uid='sum')", "msgspec.Struct or a dataclass", "dict"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", JOBS.values(), ids=JOBS)
def test_a_mistake_in_the_job(bench: Bench, case: Case) -> None:
    check(bench, case)


# -- settings -----------------------------------------------------------------------------------------------------


def _setting(name: str, value: str, *says: str) -> Case:
    return Case(lambda b: b.settings.update({name: value}), ConfigError, "config", (name, *says))


SETTINGS = [
    _setting("paralelism", "2", "no such setting", "parallelism"),
    _setting("run.batches", "2", "no such setting", "max_batches"),
    _setting("parallelism", "two", "does not fit", "two"),
    _setting("parallelism", "500", "out of range", "128"),
    _setting("max_parallelism", "40000", "out of range", "40000"),
    _setting("run.max_duration", "soon", "does not fit", "soon", "90s"),
    _setting("run.max_duration", "1e400h", "does not fit"),
    _setting("run.max_batches", "0", "does not fit"),
    _setting("checkpoints.retained", "0", "does not fit"),
    _setting("source.max_rows_per_batch", "-1", "does not fit"),
    _setting("storage.shared", "maybe", "does not fit", "maybe"),
    _setting("name", "../x", "job's name", "../x"),
]


@pytest.mark.parametrize("case", SETTINGS, ids=lambda case: case.says[0] + " " + case.says[1])
def test_a_mistake_in_the_settings(bench: Bench, case: Case) -> None:
    check(bench, case)


# -- the job root -------------------------------------------------------------------------------------------------


def _below_a_file(bench: Bench) -> None:
    bench.root = str(bench.job / "root")


def _at_a_file(bench: Bench) -> None:
    bench.root = str(bench.job)


def _read_only(bench: Bench) -> None:
    """A place where even root may not make folders."""
    bench.root = "/sys/stateflow-root"


def _other_scheme(bench: Bench) -> None:
    bench.root = "hdfs://name/root"


@pytest.mark.parametrize("case", [
    Case(_below_a_file, ConfigError, "config", ("job.py",)),
    Case(_at_a_file, ConfigError, "config", ("job.py",)),
    Case(_read_only, ConfigError, "config", ("/sys/stateflow-root", "write")),
    Case(_other_scheme, ConfigError, "config", ("hdfs://name/root",)),
], ids=lambda case: case.make.__name__)  # fmt: skip
def test_a_root_that_cannot_be_used(bench: Bench, case: Case) -> None:
    check(bench, case)


def test_a_root_of_this_host_with_tasks_on_others(tmp_path: Path) -> None:
    from stateflow.runtime.spark_run import check_root

    with pytest.raises(ConfigError, match="on this host only") as refused:
        check_root(PosixStorage(tmp_path / "root"), "spark://example:7077", False)
    assert refused.value.facts["master"] == "spark://example:7077"
    assert "storage.shared=true" in refused.value.hint
    check_root(PosixStorage(tmp_path / "root"), "spark://example:7077", True)
    check_root(PosixStorage(tmp_path / "root"), "local[2,4]", False)
    with pytest.raises(ConfigError, match="in memory"):
        check_root(MemoryStorage("memory://x"), "local[2,4]", False)
    assert contents(tmp_path) == {}


def _set(name: str, value: str) -> Callable[[Bench], object]:
    return lambda bench: bench.settings.update({name: value})


def _format(change: Callable[[JobFormat], JobFormat]) -> Callable[[Bench], object]:
    def make(bench: Bench) -> None:
        path = Path(bench.root, "FORMAT")
        document, _ = unseal(path.read_bytes(), JobFormat, "FORMAT")
        path.write_bytes(seal(change(document))[0])

    return make


def _newer(document: JobFormat) -> JobFormat:
    return JobFormat(
        version=99, job=document.job, job_uuid=document.job_uuid, max_parallelism=document.max_parallelism
    )


def _key_by_number(bench: Bench) -> None:
    bench.write(BUILD.replace('key_by("key")', 'key_by("number")'))


def _without_operator(bench: Bench) -> None:
    bench.write(_STREAM + "rows.sink_to(sink(), uid='totals')")


def _other_source(bench: Bench) -> None:
    bench.write(BUILD, JOB.replace("Row", "Event"))


def _other_source_uid(bench: Bench) -> None:
    bench.write(BUILD.replace('uid="rows"', 'uid="events"'))


CHANGED = {
    "another job": Case(_set("name", "other"), WrongJobRoot, "wrong-job-root", ("'job'", "'other'", "root")),
    "another max parallelism": Case(
        _set("max_parallelism", "64"), WrongJobRoot, "wrong-job-root", ("128", "64")
    ),
    "other key types": Case(_key_by_number, WrongJobRoot, "wrong-job-root", ("'sum'", "string", "bigint")),
    "a newer format": Case(_format(_newer), WrongJobRoot, "wrong-job-root", ("99", "format")),
    "another parallelism": Case(_set("parallelism", "3"), ConfigError, "config", ("parallelism=2", "'sum'")),
    "an operator is gone": Case(_without_operator, ConfigError, "config", ("'sum'", "uids")),
    "a source has another uid": Case(_other_source_uid, ConfigError, "config", ("'rows'", "'events'")),
    "a source reads something else": Case(
        _other_source, ConfigError, "config", ("'rows'", "[Row]", "[Event]")
    ),
}


@pytest.mark.parametrize("case", CHANGED.values(), ids=CHANGED)
def test_a_job_that_does_not_fit_its_root(ran: Bench, case: Case) -> None:
    check(ran, case)


# -- damage -------------------------------------------------------------------------------------------------------


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def _newest(pattern: str) -> Callable[[Bench], Path]:
    return lambda bench: max(Path(bench.root).glob(pattern))


VICTIMS = {
    "FORMAT": _newest("FORMAT"),
    "the newest log entry": _newest("log/*"),
    "the manifest": _newest("data/*/*/manifest.json"),
    "a data file of RocksDB": lambda bench: bench.state_files()[-1],
    "RocksDB's manifest": _newest("data/*/*/*MANIFEST*"),
}


@pytest.mark.parametrize("damage", [_flip, _truncate], ids=["bit", "end"])
@pytest.mark.parametrize("victim", VICTIMS.values(), ids=VICTIMS)
def test_a_damaged_file_is_named(
    ran: Bench, victim: Callable[[Bench], Path], damage: Callable[[Path], object]
) -> None:
    path = victim(ran)
    name = str(path.relative_to(ran.root))
    check(ran, Case(lambda b: damage(path), CorruptFile, "corrupt-file", (name,)))


@pytest.mark.parametrize("victim", [v for k, v in VICTIMS.items() if k not in ("FORMAT", "the newest log entry")],
                         ids=[k for k in VICTIMS if k not in ("FORMAT", "the newest log entry")])  # fmt: skip
def test_a_missing_file_is_named(ran: Bench, victim: Callable[[Bench], Path]) -> None:
    path = victim(ran)
    check(ran, Case(lambda b: path.unlink(), MissingFile, "missing-file", (str(path.relative_to(ran.root)),)))


# -- the machine --------------------------------------------------------------------------------------------------

SPARK_JOB = "def build(env):\n    env.from_source(FileSource(HERE, schema=Row), uid='rows').sink_to(sink(), uid='out')"


def _fake_java(folder: Path, version: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{version}' >&2\n")
    java.chmod(0o700)
    return folder


def test_no_java(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = bench.folder / "empty"
    empty.mkdir()
    monkeypatch.setenv("JAVA_HOME", str(empty))
    case = Case(lambda b: b.write(SPARK_JOB), EnvironmentUnsupported, "environment-unsupported",
                ("no Java", str(empty), "Java 17"))  # fmt: skip
    check(bench, case)
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(empty))
    with pytest.raises(EnvironmentUnsupported, match="no Java"):
        check_java()


def test_an_old_java(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_fake_java(bench.folder / "jdk", 'openjdk version "1.8.0_292"')))
    case = Case(lambda b: b.write(SPARK_JOB), EnvironmentUnsupported, "environment-unsupported",
                ("Java is not supported", "found=8", "Java 17 or 21", "jdk"))  # fmt: skip
    check(bench, case)


@pytest.mark.parametrize(("text", "major"), [
    ('java version "1.8.0_292"', 8), ('openjdk version "11.0.22" 2024-01-16', 11), ('openjdk version "17" 2021', 17),
    ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21.0.1" 2023-10-17', 21), ("no such thing", 0), ("", 0),
])  # fmt: skip
def test_what_java_says_about_itself(text: str, major: int) -> None:
    assert java_major(text) == major


@pytest.mark.parametrize("version", [(3, 10), (3, 14), (2, 7)])
def test_another_python(version: tuple[int, int]) -> None:
    with pytest.raises(EnvironmentUnsupported, match="this Python") as refused:
        check_python(version)
    assert refused.value.facts == {"found": f"{version[0]}.{version[1]}"} and "3.11" in refused.value.hint
    check_python((3, 11))
    check_python()


@pytest.mark.parametrize("version", ["3.5.1", "4.1.0", "4.3.0", "4.20.0"])
def test_another_spark(version: str) -> None:
    with pytest.raises(EnvironmentUnsupported, match="this Spark") as refused:
        check_spark(version)
    assert refused.value.facts == {"found": version} and "4.2.0" in refused.value.hint
    check_spark("4.2.0")


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]"])
def test_a_master_that_never_tries_a_task_again(master: str) -> None:
    from stateflow.runtime.session import check_master

    with pytest.raises(ConfigError, match="without retries") as refused:
        check_master(master)
    assert refused.value.facts == {"master": master} and "local[N,4]" in refused.value.hint
    check_master("local[2,4]")
    check_master("yarn")


# -- columns of files ---------------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.parametrize(("columns", "says"), [
    ({"key": pa.string()}, ("'number'", "do not have")),
    ({"key": pa.string(), "number": pa.string()}, ("'number'", "bigint", "string", "another type")),
    ({"key": pa.binary(), "number": pa.int64()}, ("'key'", "string", "binary")),
    ({"key": pa.string(), "number": pa.float64()}, ("'number'", "bigint", "double")),
])  # fmt: skip
def test_files_with_other_columns(
    tmp_path: Path, spark_session: Any, columns: dict[str, pa.DataType], says: tuple[str, ...]
) -> None:
    source = _file_source(tmp_path, columns)
    before = contents(tmp_path)
    with pytest.raises(SchemaMismatch) as refused:
        source.check(spark_session)
    assert [word for word in (*says, str(tmp_path)) if word not in str(refused.value)] == []
    assert refused.value.hint
    assert contents(tmp_path) == before


@pytest.mark.spark
def test_files_with_narrower_numbers_are_taken(tmp_path: Path, spark_session: Any) -> None:
    _file_source(tmp_path, {"key": pa.string(), "number": pa.int32(), "more": pa.int8()}).check(spark_session)


def test_a_folder_of_files_that_is_not_there(tmp_path: Path) -> None:
    source = _file_source(tmp_path, {"key": pa.string()})
    source.path = str(tmp_path / "gone")
    with pytest.raises(ConfigError, match="folder is not there") as refused:
        source.check(None)  # type: ignore[arg-type] - not asked
    assert "gone" in str(refused.value)


def _file_source(folder: Path, columns: dict[str, pa.DataType]) -> Any:
    import msgspec

    from stateflow.connectors.files import FileSource

    row_class = msgspec.defstruct("Row", [("key", str), ("number", int)])
    parquet.write_table(pa.schema(columns.items()).empty_table(), folder / "part-0.parquet")
    return FileSource(folder, schema=row_class)


# -- as a user meets it -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["no job file", "a uid twice"])
def test_on_the_command_line(bench: Bench, name: str) -> None:
    case = JOBS[name]
    case.make(bench)
    before = bench.on_disk()
    ended = stateflow(bench.command("--result-file", str(bench.folder / "result.json")), bench.folder)
    assert ended.returncode == 2
    first, *_, last = ended.stderr.strip().splitlines()
    assert first.startswith(f"error [{case.code}]: ") and last.startswith("  hint: ")
    assert [word for word in case.says if word not in ended.stderr] == []
    assert "Traceback" not in ended.stderr

    result = json.loads((bench.folder / "result.json").read_text())
    (bench.folder / "result.json").unlink()
    assert result["status"] == "failed" and result["error"]["code"] == case.code
    assert bench.on_disk() == before


def test_a_parameter_and_a_setting_can_meet_only_in_the_last_layer() -> None:
    """The command line may ask for more subtasks than the default allows when the job itself allows them."""

    def build(env: StreamExecutionEnvironment) -> None:
        env.configure(max_parallelism=8192)

    _, settings = declare(build, "job", ({}, {"parallelism": "5000"}))
    assert settings.parallelism == 5000
