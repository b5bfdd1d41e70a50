"""Whatever a run refuses at its start, `check` and `plan` report earlier: one list, with a mistake for each check."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet

from stateflow.checkpoint.log.job_root import JobRoot, NewJob
from stateflow.cli.main import main
from stateflow.clock import SystemClock
from stateflow.errors import StateflowError
from stateflow.launch import prepare
from stateflow.runtime.planning.physical_plan import plan_job
from stateflow.runtime.preflight import CHECKS, Needs
from stateflow.storage import open_storage
from tests.support.cli_fixture import BUILD, JOB, CliFixture, contents

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
    shown = _invoke(cli, "plan", *more)
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
