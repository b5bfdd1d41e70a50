"""`stateflow explain`: the drawing, warnings, what was not checked, and whether a run would start."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from syrupy.assertion import SnapshotAssertion

from stateflow.errors import ConfigError
from stateflow.launch import RunRequest, prepare, run_job
from stateflow.runtime.planning.explain import to_lines
from stateflow.runtime.task import store_cache
from tests.support.cli_fixture import BUILD, JOB, STREAM, CliFixture, invoke
from tests.support.errors import reported_error
from tests.support.screens import normalized

READS_ORDERS = "env.parameter('orders', '')"
FILES = """
    rows = env.from_source(FileSource(HERE.parent / "input", schema=Row, format="{}"), uid="rows")
    rows.key_by("key").process(Sum(), output=Total, uid="sum").sink_to(sink(), uid="totals")
"""


def _plan(cli: CliFixture, *more: str) -> Result:
    return invoke("explain", str(cli.job), "--set", "max_parallelism=128", *more)


def _facts(cli: CliFixture, *more: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_plan(cli, "--json", *more).stdout)
    return found


def _warnings_of_a_run(caplog: pytest.LogCaptureFixture, request: RunRequest) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="stateflow"):
        run_job(request)
    store_cache.close_all()
    return [r.getMessage() for r in caplog.records if r.name == "stateflow.launch"]


def test_a_plan_shows_the_job_and_changes_nothing(cli: CliFixture, golden: SnapshotAssertion) -> None:
    before = cli.on_disk()
    shown = _plan(cli, "--set", "parallelism=3")
    assert shown.exit_code == 0, shown.output
    assert normalized(shown.output) == golden
    assert cli.on_disk() == before
    found = _facts(cli, "--set", "parallelism=3")
    (level,) = found["levels"]
    (chain,) = level["chains"]
    assert (found["parallelism"], found["on_spark"]) == (3, False)
    assert (chain["uid"], chain["inputs"][0]["key"], chain["states"][0]["kind"]) == ("sum", ["key string"], "value")
    (sink,) = chain["sinks"]
    assert (sink["uid"], sink["sink"], sink["location"]) == ("totals", "FolderSink", str(cli.folder / "table"))
    assert (sink["rows"], sink["from_uids"], sink["delivery"]) == ("sum", ["sum"], "exactly-once")


@pytest.mark.parametrize(
    ("key_groups", "code", "codes"), [(128, 0, set()), (64, 20, {"wrong-job-root"})], ids=["same", "fewer"]
)
def test_a_plan_over_a_job_root_fails_if_the_job_does_not_fit(
    cli: CliFixture, golden: SnapshotAssertion, key_groups: int, code: int, codes: set[str]
) -> None:
    cli.run()
    more = ("--job-root", cli.root, "--set", f"max_parallelism={key_groups}")
    shown = _plan(cli, *more)
    assert shown.exit_code == code
    assert normalized(shown.output, folder=cli.folder) == golden
    found = _facts(cli, *more)
    assert ({p["code"] for p in found["problems"]}, found["unchecked"]) == (codes, [])


@pytest.mark.parametrize(("format", "names_the_format"), [("parquet", False), ("json", True)])
def test_without_spark_a_plan_lists_what_was_not_checked(
    cli: CliFixture, format: str, names_the_format: bool, golden: SnapshotAssertion
) -> None:
    (cli.folder / "input").mkdir()
    cli.write("def build(env):" + FILES.format(format))
    assert any(format in what for what in _facts(cli, "--no-spark")["unchecked"]) == names_the_format
    assert normalized(_plan(cli, "--no-spark").output, folder=cli.folder) == golden


@pytest.mark.parametrize(
    ("reads", "given", "warned"),
    [
        (READS_ORDERS, {"orders": "/in"}, []),
        (READS_ORDERS, {"order": "1", "b": "2"}, ["order", "b"]),
        ("dict(env.parameters)", {"order": "1"}, []),
    ],
)
def test_a_parameter_that_the_job_does_not_read_is_a_warning(
    cli: CliFixture, caplog: pytest.LogCaptureFixture, reads: str, given: dict[str, str], warned: list[str]
) -> None:
    cli.write(BUILD.replace("def build(env):\n", f"def build(env):\n    {reads}\n"))
    sets = [part for name, value in given.items() for part in ("--set", f"job.{name}={value}")]
    warnings = _facts(cli, *sets)["warnings"]
    assert len(warnings) == len(warned)
    for warning, name in zip(warnings, warned, strict=True):
        assert f"job.{name}" in warning and "orders" in warning
    parameters = {f"job.{name}": value for name, value in given.items()}
    assert _warnings_of_a_run(caplog, RunRequest(cli.job, cli.root, (cli.settings, parameters))) == warnings
    checked = invoke("check", str(cli.job), "--against", cli.root, "--json", *sets)
    assert json.loads(checked.stdout)["warnings"] == warnings


def test_a_new_job_root_over_a_table_of_another_one_is_a_problem_unless_tables_are_shared(
    cli: CliFixture, golden: SnapshotAssertion
) -> None:
    cli.write(
        BUILD, JOB.replace("stateflow.testing.sinks import FolderSink", "stateflow import DeltaSink as FolderSink")
    )
    new = str(cli.folder / "rooot")
    assert _facts(cli, "--job-root", new)["problems"] == []
    cli.run()
    assert _facts(cli, "--job-root", cli.root)["problems"] == []
    shown = _plan(cli, "--job-root", new)
    assert normalized(shown.output, folder=cli.folder) == golden
    (problem,) = _facts(cli, "--job-root", new)["problems"]
    assert problem["code"] == "config" and str(cli.folder / "table") in problem["message"]
    with pytest.raises(ConfigError):
        run_job(RunRequest(cli.job, new, (cli.settings,)))
    assert not Path(new).exists()
    run_job(RunRequest(cli.job, new, (cli.settings,), shares_tables=True))


@pytest.mark.parametrize(
    ("build", "facts"),
    [("def build(env):\n    pass\n", {}), (STREAM + "env.parameter('orders')", {"name": "orders"})],
    ids=["no-sink", "missing-parameter"],
)
def test_a_job_that_cannot_run_is_an_error(cli: CliFixture, build: str, facts: dict[str, str]) -> None:
    cli.write(build)
    shown = _plan(cli, "--set", "job.order=1")
    error = reported_error(shown.stderr)
    assert (shown.exit_code, error.code) == (2, "job-definition") and error.facts.items() >= facts.items()
    # With the parameters that were given, and the option that passes the missing one.
    assert not facts or ("given=['order']" in shown.stderr and "--set job.orders=" in shown.stderr)


@pytest.mark.parametrize(
    ("sink", "mode", "delivery", "warns"),
    [
        ("ForeachBatchSink(print)", "exactly-once", "at-least-once", True),
        ("ForeachBatchSink(print)", "at-least-once", "at-least-once", False),
        ("ForeachBatchSink(print, idempotent=True)", "exactly-once", "idempotent", False),
        ("DeltaSink(HERE.parent / 'delta')", "exactly-once", "exactly-once", False),
        ("DeltaSink(HERE.parent / 'delta')", "at-least-once", "at-least-once", False),
        # No catalog of Spark has a table of a job without Spark.
        ("DeltaSink(HERE.parent / 'delta', register_as='a.b')", "exactly-once", "exactly-once", True),
    ],
)
def test_a_plan_states_how_often_rows_are_passed_on_and_warns(
    cli: CliFixture, sink: str, mode: str, delivery: str, warns: bool
) -> None:
    imports = JOB.replace("import FileSource", "import DeltaSink, FileSource, ForeachBatchSink")
    cli.write(BUILD.replace("sink_to(sink(), ", f"sink_to({sink}, "), imports)
    prepared = prepare(cli.job, layers=({**cli.settings, "checkpoints.mode": mode},))
    explanation = prepared.explanation()
    sinks = [sink for level in explanation.levels for chain in level.chains for sink in chain.sinks]
    assert [(sink.uid, sink.delivery) for sink in sinks] == [("totals", delivery)]
    assert any(f", {delivery}" in line for line in to_lines(explanation)) == (delivery != "exactly-once")
    assert bool(prepared.warnings) == warns
