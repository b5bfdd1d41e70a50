"""Whatever a run refuses at its start, `check` and `plan` report earlier: one list, with a mistake for each check."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import parquet

from stateflow.checkpoint.log.job_format import NewJob
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.cli.main import main
from stateflow.clock import SystemClock
from stateflow.errors import StateflowError
from stateflow.launch import prepare
from stateflow.runtime.planning.physical_plan import plan_job
from stateflow.runtime.preflight import CHECKS, Needs
from stateflow.runtime.task import store_cache
from stateflow.storage import open_storage
from tests.support.cli_fixture import BUILD, JOB, CliFixture, contents

FILES = """
def build(env):
    rows = env.from_source(FileSource(HERE.parent / "input", schema=Row{options}), uid="rows"){more}
    rows.key_by("key").process(Sum(), output=Total, uid="sum").sink_to(sink(), uid="totals")
"""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[CliFixture]:
    found = CliFixture(tmp_path)
    yield found
    store_cache.close_all()


@dataclass(frozen=True)
class Mistake:
    """Something that a start refuses.

    Attributes:
        check: the name of the check that finds it.
        make: makes it; gets pytest's monkeypatch as well.
        has_run: whether the job has run before.
        of_root: whether it takes the job root to find it.
    """

    check: str
    code: str
    make: Callable[[CliFixture, pytest.MonkeyPatch], object]
    has_run: bool = False
    of_root: bool = False


def _files(bench: CliFixture, options: str = "", more: str = "", columns: dict[str, pa.DataType] | None = None) -> None:
    """A job over a folder of Parquet files."""
    folder = bench.folder / "input"
    folder.mkdir()
    given = columns or {"key": pa.string(), "number": pa.int64()}
    parquet.write_table(pa.schema(given.items()).empty_table(), folder / "part-0.parquet")
    bench.write(FILES.format(options=options, more=more))


def _without_java(bench: CliFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    _files(bench)
    monkeypatch.setenv("JAVA_HOME", str(bench.folder))


def _setting(name: str, value: str) -> Callable[[CliFixture, pytest.MonkeyPatch], object]:
    def make(bench: CliFixture, _: pytest.MonkeyPatch) -> None:
        _files(bench)
        bench.settings[name] = value

    return make


def _job(build: str, head: str = JOB) -> Callable[[CliFixture, pytest.MonkeyPatch], object]:
    return lambda bench, _: bench.write(build, head)


def _sink_of_others(bench: CliFixture, _: pytest.MonkeyPatch) -> None:
    table = bench.folder / "delta"
    table.mkdir()
    (table / "someone-elses.csv").write_text("a,b")
    _delta_sink(bench, "delta")


def _sink_below_a_file(bench: CliFixture, _: pytest.MonkeyPatch) -> None:
    (bench.folder / "tables").write_text("a file")
    _delta_sink(bench, "tables/delta")


def _delta_sink(bench: CliFixture, path: str) -> None:
    head = JOB.replace("import FileSource", "import DeltaSink, FileSource")
    bench.write(BUILD.replace("sink()", f"DeltaSink(HERE.parent / '{path}')"), head)


def _moved_folder(bench: CliFixture, _: pytest.MonkeyPatch) -> None:
    _files(bench)
    (bench.folder / "input").rename(bench.folder / "elsewhere")


def _no_sink_on_another_host(bench: CliFixture, _: pytest.MonkeyPatch) -> None:
    _files(bench)
    bench.job.write_text(bench.job.read_text().replace('.sink_to(sink(), uid="totals")', ".print()"))
    bench.settings["spark.master"] = "spark://example:7077"


def _limit_without_effect(bench: CliFixture, _: pytest.MonkeyPatch) -> None:
    _files(bench, ", format='csv'")
    bench.settings["source.max_rows_per_batch"] = "5"


def _lost_state_file(bench: CliFixture, _: pytest.MonkeyPatch) -> None:
    bench.state_files()[0].unlink()


MISTAKES = [
    Mistake("machine", "environment-unsupported", _without_java),
    Mistake("spark-settings", "config", _setting("spark.master", "local[2]")),
    Mistake(
        "spark-settings", "config", _setting("spark.conf.spark.sql.shuffle.orderIndependentChecksum.enabled", "false")
    ),
    Mistake("runner", "job-definition", _job(BUILD.replace(".key_by", ".transform(lambda df: df).key_by"))),
    Mistake("sink-hosts", "config", _setting("spark.master", "spark://example:7077")),
    Mistake("root-hosts", "config", _no_sink_on_another_host, of_root=True),
    Mistake("source-settings", "config", _moved_folder),
    Mistake("source-settings", "config", _limit_without_effect),
    Mistake("sink-tables", "sink-refused", _sink_of_others),
    Mistake("sink-tables", "config", _sink_below_a_file),
    Mistake("job-root", "wrong-job-root", lambda b, _: b.settings.update(max_parallelism="64"), has_run=True),
    Mistake("job-root", "missing-file", lambda b, _: (Path(b.root) / "FORMAT").unlink(), has_run=True),
    Mistake("checkpoint", "config", _job(BUILD.replace('"sum"', '"another"')), has_run=True),
    Mistake("checkpoint", "sink-diverged", lambda b, _: (b.folder / "table").rename(b.folder / "moved"), has_run=True),
    Mistake("checkpoint-files", "missing-file", _lost_state_file, has_run=True),
]
ON_SPARK = [
    Mistake(
        "source-columns",
        "schema-mismatch",
        lambda b, _: _files(b, columns={"key": pa.string(), "number": pa.float64()}),
    ),
    Mistake("source-frames", "config", lambda b, _: _files(b, ", format='json', recursiveFileLookup='maybe'")),
    Mistake("transforms", "schema-mismatch", lambda b, _: _files(b, more=".transform(lambda df: df.select('key'))")),
    Mistake(
        "transforms",
        "schema-mismatch",
        lambda b, _: _files(b, more=".transform(lambda df: df.selectExpr('key', 'number / 2 AS number'))"),
    ),
    Mistake("transforms", "user-code", lambda b, _: _files(b, more=".transform(lambda df: df.no_such_column)")),
    Mistake("transforms", "schema-mismatch", lambda b, _: _files(b, more=".transform(lambda df: None)")),
]

# Under spark-submit, settings do not know the master: the check "hosts" again.
_AGAIN = {"session-hosts"}

_NUMBERS = count(1)


def test_there_is_a_mistake_for_each_check() -> None:
    assert {m.check for m in MISTAKES} == {c.name for c in CHECKS if c.needs is not Needs.SPARK}
    assert {m.check for m in ON_SPARK} == {c.name for c in CHECKS if c.needs is Needs.SPARK} - _AGAIN


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: f"{m.check}-{m.code}")
def test_check_and_plan_find_what_a_run_refuses(
    bench: CliFixture, mistake: Mistake, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing of it takes Spark to find.
    _check(bench, mistake, monkeypatch, ["--no-spark"])


@pytest.mark.spark
@pytest.mark.usefixtures("spark_session")
@pytest.mark.parametrize("mistake", ON_SPARK, ids=lambda m: f"{m.check}-{m.code}")
def test_check_and_plan_ask_spark_what_only_spark_knows(
    bench: CliFixture, mistake: Mistake, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Spark takes a file of one name once, and the session is that of all tests.
    bench.job = bench.job.rename(bench.job.with_name(f"job_{next(_NUMBERS)}.py"))
    refused = _check(bench, mistake, monkeypatch, [])
    if mistake.check == "transforms":
        assert f"{bench.job.name}:" in str(refused.facts["transform"])
    if mistake.check == "transforms" and mistake.code == "schema-mismatch" and "column" in refused.facts:
        assert "schema=" in refused.hint and "output=" in refused.hint
    # Without Spark, what was not checked is listed instead.
    without = _plan(bench, "--no-spark")
    assert without["problems"] == [] and without["unchecked"]


def _check(bench: CliFixture, mistake: Mistake, monkeypatch: pytest.MonkeyPatch, options: list[str]) -> StateflowError:
    if mistake.has_run:
        bench.run()
    else:
        _new_root(bench)
    mistake.make(bench, monkeypatch)
    before = contents(Path(bench.root))
    found = _plan(bench, "--job-root", bench.root, *options)["problems"]
    reported = _report(bench, *options) if "FORMAT" in before else found
    alone = [] if mistake.of_root else _plan(bench, *options)["problems"]
    assert contents(Path(bench.root)) == before
    with pytest.raises(StateflowError) as refused:
        bench.run()
    error = refused.value
    problem = {"code": error.code, "message": error.sentence, "hint": error.hint}
    assert error.code == mistake.code
    assert problem in found and problem in reported
    if not (mistake.has_run or mistake.of_root):
        assert problem in alone
    return error


def _new_root(bench: CliFixture) -> None:
    """A job root without a checkpoint."""
    start = prepare(bench.job, layers=(dict(bench.settings),)).start
    new = NewJob(start.settings.name, start.settings.max_parallelism, plan_job(start.graph, 2).key_types)
    JobRoot.create_or_open(open_storage(bench.root), SystemClock(), new, "test")


def _sets(bench: CliFixture) -> list[str]:
    return [part for name, value in bench.settings.items() for part in ("--set", f"{name}={value}")]


def _plan(bench: CliFixture, *more: str) -> dict[str, Any]:
    shown = CliRunner().invoke(main, ["plan", str(bench.job), *_sets(bench), *more, "--json"])
    found: dict[str, Any] = json.loads(shown.stdout)
    assert shown.exit_code == (20 if found["problems"] else 0)
    return found


def _report(bench: CliFixture, *more: str) -> list[dict[str, str]]:
    arguments = ["check", str(bench.job), "--against", bench.root, *_sets(bench), *more, "--json"]
    shown = CliRunner().invoke(main, arguments)
    if shown.exit_code != 20:
        # What is damaged so that nothing can be compared is an error with a code of its own.
        (line,) = (line for line in shown.stderr.splitlines() if line.startswith("error ["))
        code, _, message = line.removeprefix("error [").partition("]: ")
        hint = shown.stderr.partition("hint: ")[2].strip()
        return [{"code": code, "message": message, "hint": hint}]
    return json.loads(shown.stdout)["problems"]  # type: ignore[no-any-return]
