"""What `stateflow plan` says after the drawing: warnings, what was not checked, and whether a run would start."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from stateflow.cli import main
from stateflow.environment import RunRequest, run_job
from stateflow.runtime import stores
from tests.errors.kit import BUILD, JOB, STREAM, Bench

ORDERS = BUILD.replace("def build(env):\n", "def build(env):\n    env.parameter('orders', '')\n")
FILES = """
    rows = env.from_source(FileSource(HERE.parent / "input", schema=Row, format="{}"), uid="rows")
    rows.key_by("key").process(Sum(), output=Total, uid="sum").sink_to(sink(), uid="totals")
"""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def _plan(bench: Bench, *more: str) -> Result:
    return CliRunner().invoke(main, ["plan", str(bench.job), "--set", "max_parallelism=128", *more])


def _facts(bench: Bench, *more: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_plan(bench, "--json", *more).stdout)
    return found


def test_the_last_line_is_the_verdict(bench: Bench) -> None:
    bench.run()
    assert _plan(bench, "--job-root", bench.root).output.splitlines()[-1] == "a run would start"
    *_, unchecked, verdict = _plan(bench).output.splitlines()
    assert "--job-root" in unchecked
    assert verdict == "a run would start, as far as it was checked"
    refused = _plan(bench, "--job-root", bench.root, "--set", "max_parallelism=64")
    assert (refused.exit_code, refused.output.splitlines()[-1]) == (20, "a run would be refused")


@pytest.mark.parametrize(("format", "names_the_format"), [("parquet", False), ("json", True), ("csv", True)])
def test_what_nothing_checks_is_listed_by_format(bench: Bench, format: str, names_the_format: bool) -> None:
    (bench.folder / "input").mkdir()
    bench.write("def build(env):" + FILES.format(format))
    unchecked = [what for what in _facts(bench, "--no-spark")["unchecked"] if "source rows" in what]
    assert [format in what for what in unchecked] == [names_the_format]


@pytest.mark.parametrize(("given", "warned"), [
    ({}, []), ({"orders": "/in"}, []), ({"order": "/in"}, ["order"]), ({"order": "1", "b": "2"}, ["order", "b"]),
])  # fmt: skip
def test_a_parameter_that_the_job_does_not_read_is_a_warning(
    bench: Bench, caplog: pytest.LogCaptureFixture, given: dict[str, str], warned: list[str]
) -> None:
    bench.write(ORDERS)
    sets = [part for name, value in given.items() for part in ("--set", f"job.{name}={value}")]
    expected = [f"parameter job.{name} is not used; the job reads orders" for name in warned]
    assert _facts(bench, *sets)["warnings"] == expected
    with caplog.at_level(logging.WARNING, logger="stateflow"):
        parameters = {f"job.{name}": value for name, value in given.items()}
        run_job(RunRequest(bench.job, bench.root, (bench.settings, parameters)))
        stores.close_all()
    assert [r.getMessage() for r in caplog.records if r.name == "stateflow.environment"] == expected
    against = ["check", str(bench.job), "--against", bench.root, "--json", *sets]
    assert json.loads(CliRunner().invoke(main, against).stdout)["warnings"] == expected


def test_a_new_job_root_over_a_table_that_another_one_has_written_is_a_warning(
    bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench.write(
        BUILD,
        JOB.replace("stateflow.testing.sinks import FolderSink", "stateflow import DeltaSink as FolderSink"),
    )
    new = str(tmp_path / "rooot")
    assert _facts(bench, "--job-root", new)["warnings"] == []
    bench.run()
    assert _facts(bench, "--job-root", bench.root)["warnings"] == []
    (warning,) = _facts(bench, "--job-root", new)["warnings"]
    assert new in warning and str(bench.folder / "table") in warning
    with caplog.at_level(logging.WARNING, logger="stateflow"):
        run_job(RunRequest(bench.job, new, (bench.settings,)))
        run_job(RunRequest(bench.job, new, (bench.settings,)))
        stores.close_all()
    assert [r.getMessage() for r in caplog.records if r.name == "stateflow.environment"] == [warning]


def test_a_job_that_takes_all_parameters_uses_each(bench: Bench) -> None:
    bench.write(ORDERS.replace("env.parameter('orders', '')", "dict(env.parameters)"))
    assert _facts(bench, "--set", "job.order=1")["warnings"] == []


def test_a_missing_parameter_names_those_that_were_given(bench: Bench) -> None:
    bench.write(STREAM + "env.parameter('orders')")
    shown = _plan(bench, "--set", "job.order=1")
    assert shown.exit_code == 2 and "given=['order']" in shown.output
