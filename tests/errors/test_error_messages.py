"""What a user is told about the job file and the settings: each error of its own kind, by name, with what to do."""

from __future__ import annotations

import json
import textwrap

import pytest

from stateflow.environment import StreamExecutionEnvironment, declare
from stateflow.errors import BatchFailed, ConfigError, JobDefinitionError
from stateflow.testing.sinks import FolderSink
from tests.errors.kit import BUILD, JOB, STREAM, Bench, Case, check, stateflow

# -- the job file and its graph -----------------------------------------------------------------------------------


def _job(build: str, *says: str, head: str = JOB) -> Case:
    return Case(lambda bench: bench.write(build, head), JobDefinitionError, "job-definition", says)


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
    "does nothing": _job(STREAM + "pass", "does nothing"),
    "a parameter is missing": _job(STREAM + "env.parameter('tables')", "'tables'", "--set job.tables="),
    "a source without uid": _job("def build(env):\n    env.from_source(source())", "source has no uid"),
    "an operator without uid": _job(STREAM + "rows.key_by('key').process(Sum(), output=Total)", "operator has no uid"),
    "a sink without uid": _job(STREAM + "rows.sink_to(sink())", "sink has no uid"),
    "a uid twice": _job(STREAM + "rows.sink_to(sink(), uid='rows')", "uid is used twice", "'rows'"),
    "a uid that is no name": Case(
        lambda b: b.write(STREAM + "rows.sink_to(sink(), uid='../x')"), ConfigError, "config",
        ("uid of a sink", "../x"),
    ),
    "no such key column": _job(STREAM + "rows.key_by('kye')", "no such column", "'kye'", "key, number"),
    "no such order column": _job(STREAM + "rows.key_by('key', order_by=['time'])", "no such column", "'time'"),
    "a source that nothing reads": _job(
        STREAM + "more = env.from_source(source(), uid='more')\n    rows.sink_to(sink(), uid='out')", "read by nothing",
        "'more'",
    ),
    "an expression without Spark": _job(
        STREAM + "rows.transform(lambda df: df).sink_to(sink(), uid='out')", "without Spark", "'out'"
    ),
    "a class without columns": _job(
        STREAM + "rows.key_by('key').process(Sum(), output=dict, uid='sum')", "msgspec.Struct or a dataclass", "dict"
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


# -- as a user meets it -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["no job file", "a uid twice"])
def test_on_the_command_line(bench: Bench, name: str) -> None:
    case = JOBS[name]
    case.make(bench)
    before = bench.on_disk()
    ended = stateflow(bench.command("--result-file", str(bench.folder / "result.json")), bench.folder)
    assert ended.returncode == 2
    _, first, *_, last = ended.stderr.strip().splitlines()
    assert first.startswith(f"error [{case.code}]: ") and last.startswith("  hint: ")
    assert [word for word in case.says if word not in ended.stderr] == []
    assert "Traceback" not in ended.stderr

    result = json.loads((bench.folder / "result.json").read_text())
    (bench.folder / "result.json").unlink()
    assert result["status"] == "failed" and result["error"]["code"] == case.code
    assert bench.on_disk() == before


def test_a_source_that_fails_is_named_and_costs_nothing(bench: Bench) -> None:
    bench.write(textwrap.dedent("""
    class Failing(ScriptedSource):
        def read(self, position, limits):
            if position is not None:
                raise ConnectionResetError(104, "the database went away")
            return super().read(position, limits)

    def source():
        return Failing(Row, ROWS, HERE.parent / "ledger.json", slice_rows=4)
    """) + BUILD)  # fmt: skip
    ended = stateflow(bench.command(), bench.folder)
    assert ended.returncode == BatchFailed.exit_code and "Traceback" not in ended.stderr
    assert "a source could not be read source='rows' reason='ConnectionResetError" in ended.stderr
    assert "the database went away" in ended.stderr and "job.py:" in ended.stderr
    assert "hint: a new run starts from" in ended.stderr
    bench.write(BUILD)
    bench.run()
    assert len(FolderSink(bench.folder / "table").rows()) == 12


def test_a_parameter_and_a_setting_can_meet_only_in_the_last_layer() -> None:
    """The command line may ask for more subtasks than the default allows when the job itself allows them."""

    def build(env: StreamExecutionEnvironment) -> None:
        env.configure(max_parallelism=8192)

    _, settings = declare(build, "job", ({}, {"parallelism": "5000"}))
    assert settings.parallelism == 5000
