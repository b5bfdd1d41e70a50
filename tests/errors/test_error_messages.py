"""Mistakes in the job file and in the settings: each leads to an error of its kind that names what is wrong.

What `StreamExecutionEnvironment` and the settings refuse themselves is in tests/unit.
"""

from __future__ import annotations

import json

import pytest

from stateflow.errors import BatchFailed, ConfigError, JobDefinitionError
from stateflow.testing.sinks import FolderSink
from tests.support.cli_fixture import BUILD, JOB, STREAM, Case, CliFixture, check, invoke
from tests.support.errors import reported_error


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
