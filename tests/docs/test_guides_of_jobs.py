"""The guides about writing and testing jobs and choosing state: all of their code runs, their output is printed."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from stateflow.config.sources import resolve
from stateflow.environment import declare
from stateflow.state.schema_compatibility import Fit
from stateflow.testing import BroadcastInput, KeyedHarness, KeyedInput
from tests.docs.pages import blocks, load_module, read
from tests.support.cli_fixture import invoke

WRITE = read("write-a-job")
*JOB, DAG = blocks(WRITE, "python")
TESTS = "\n\n".join(blocks(read("test-a-job"), "python"))
NOON = datetime(2026, 3, 1, 12)  # noqa: DTZ001 - without a zone, as its column


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "payments_job.py"
    path.write_text("\n\n".join(JOB))
    return path


def _command(word: str, job: Path) -> list[str]:
    (block,) = [b for b in blocks(WRITE) if b.startswith(f"stateflow {word} ")]
    words = shlex.split(block.replace("\\\n", ""))[1:]
    return [w.replace("payments_job.py", str(job)).replace("/data/", f"{job.parent}/") for w in words]


# -- write a job ------------------------------------------------------------------------------------------------------


def _without_checks(plan: str) -> list[str]:
    return [line for line in plan.splitlines() if not line.startswith("  not checked: ")]


def test_the_plan_is_drawn_as_the_guide_shows(job: Path, tmp_path: Path) -> None:
    """A plan without Spark has fewer checks; the slow test compares all of it."""
    # A missing folder would be reported.
    (tmp_path / "payments").mkdir()
    shown = invoke(*_command("explain", job), "--no-spark")
    assert shown.exit_code == 0, shown.output
    (drawn,) = blocks(WRITE, "text")
    assert _without_checks(shown.output.replace(str(tmp_path), "/data")) == _without_checks(drawn)


def _deliver(folder: Path) -> None:
    schema = pa.schema([("card", pa.string()), ("at", pa.timestamp("us")), ("amount", pa.float64())])
    files = [
        # Of card c, two payments five hours apart in one batch, and between batches.
        [("a", 0, 5.0), ("a", 20, 7.0), ("b", 1, -1.0), ("c", 21, 1.0)],
        [("c", 321, 2.0), ("c", 20, 4.0), ("b", 325, 3.0)],
        [("c", 621, 8.0), ("c", 921, 16.0)],
        [("a", 1, 1.0)],
    ]
    for number, rows in enumerate(files):
        path = folder / f"{number}.parquet"
        payments = [{"card": c, "at": NOON + timedelta(minutes=at), "amount": amount} for c, at, amount in rows]
        pq.write_table(pa.Table.from_pylist(payments, schema), path)
        # Spark takes files in order of their times, which must differ.
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def _typed(command: list[str]) -> str:
    """The output of a command in a process of its own, in which Spark starts."""
    done = subprocess.run([sys.executable, "-m", "stateflow", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow(reason="starts Spark four times")
@pytest.mark.spark
def test_the_job_is_planned_and_runs_and_its_state_fits_itself(job: Path, tmp_path: Path) -> None:
    (tmp_path / "payments").mkdir()
    assert [_typed(_command("explain", job)).replace(str(tmp_path), "/data")] == blocks(WRITE, "text")
    _deliver(tmp_path / "payments")
    more = ["--set", f"local_dir={tmp_path}/local", "--set", "source.max_files_per_batch=1"]
    _typed([*_command("run", job), *more])

    def table(name: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = DeltaTable(tmp_path / "tables" / name).to_pyarrow_table().to_pylist()
        return rows

    def visits() -> list[tuple[str, int, float]]:
        return sorted((row["card"], row["payments"], row["total"]) for row in table("visits"))

    ended = [("a", 2, 12.0), ("b", 1, 3.0), ("c", 1, 2.0), ("c", 1, 8.0), ("c", 2, 5.0)]
    assert visits() == ended
    assert [row["amount"] for row in table("late")] == [1.0]
    _typed([*_command("run", job), *more, "--drain"])
    assert visits() == sorted([*ended, ("c", 1, 16.0)])
    assert [json.loads(row["row"])["amount"] for row in table("dead_letters")] == [-1.0]
    (state,) = json.loads(_typed([*_command("check", job), "--json"]))["states"]
    assert (state["operator"], state["state"], state["fit"]) == ("find-visits", "visits", Fit.AS_IS)


def test_the_settings_of_the_dag_are_the_parameters_of_the_job(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr("stateflow_airflow.dags.stateflow_dags", lambda **arguments: given.update(arguments))
    exec(DAG, {})
    assert set(given["job"].settings) == {f"job.{name}" for name in re.findall(r'parameter\("(\w+)"\)', "".join(JOB))}
    assert Path(given["application"]).name == job.name


# -- test a job -------------------------------------------------------------------------------------------------------


def test_the_tests_of_the_guide_pass(job: Path) -> None:
    """Over the job of the other guide."""
    load_module(job, job.read_text())
    guide = load_module(job.with_name("test_payments_job.py"), TESTS)
    names = [name for name in vars(guide) if name.startswith("test_")]
    assert len(names) >= 8
    for test in (getattr(guide, name) for name in names):
        marks = getattr(test, "pytestmark", [])
        for value in marks[0].args[1] if marks else [None]:
            test(*([] if value is None else [value]))
    for module in (job.stem, "test_payments_job"):
        sys.modules.pop(module)


# -- choose state -----------------------------------------------------------------------------------------------------


@pytest.fixture
def guide() -> SimpleNamespace:
    found: dict[str, Any] = {}
    text = "\n\n".join(blocks(read("choose-state"), "python"))
    exec(compile(text, "choose-state.md", "exec", dont_inherit=True), found)
    return SimpleNamespace(**found)


def _harness(guide: SimpleNamespace, function: str, *inputs: BroadcastInput) -> KeyedHarness:
    rows = KeyedInput(guide.Payment, key_by="user")
    return KeyedHarness(getattr(guide, function)(), rows, *inputs, output=guide.Summary)


def test_every_kind_of_state_of_the_guide_works(guide: SimpleNamespace) -> None:
    with _harness(guide, "Profile") as h:
        assert h.push(("u", 4.0, "s"), ("u", 2.0, "s")) == [guide.Summary("u", 4.0, 4.0), guide.Summary("u", 4.0, 3.0)]
        kept = {name: h.state(name, "u") for name in ("last", "amounts", "by-shop", "largest", "mean")}
        assert kept == {"last": 2.0, "amounts": [4.0, 2.0], "by-shop": {"s": 2}, "largest": 4.0, "mean": 3.0}
    with _harness(guide, "OverLimit", BroadcastInput(guide.Limit)) as h:
        assert h.push_both([("u", 9.0, "s"), ("u", 4.0, "s")], [("s", 5.0)]) == [guide.Summary("u", 9.0, 5.0)]
        assert h.broadcast_state(guide.LIMITS) == {"s": 5.0}
    with _harness(guide, "Sampled") as h:
        h.push(*(("u", float(n), "s") for n in range(150)))
        assert h.operator_state("sample") == [[float(n) for n in range(50, 150)]]
    with _harness(guide, "Totals") as h:
        h.push(("u", 1.0, "s"), ("u", 2.0, "s"))
        assert h.push(("u", 3.0, "s")) == [guide.Summary("u", 6.0, 3.0)]


def test_the_time_to_live_of_the_guide_restarts_with_each_read(guide: SimpleNamespace) -> None:
    day = 24 * 60 * 60 * 1000
    with _harness(guide, "Recent") as h:
        for now in (0, 6, 12, 19):
            h.advance_processing_time(now * day)
            h.push(("u", 1.0, "s"))
        assert [row.first for row in h.output] == [1.0, 2.0, 3.0, 1.0]


def test_the_settings_of_the_guide_choose_backends_and_its_limits_are_the_defaults(guide: SimpleNamespace) -> None:
    (block,) = blocks(read("choose-state"), "toml")
    assert resolve({"state.backend": tomllib.loads(block)["state"]["backend"]}).state.backend == "filesystem"
    _, settings = declare(guide.build, "job", ())
    assert (settings.state.backend, settings.state.incremental) == ("rocksdb", True)
    text, state = read("choose-state"), resolve().state
    assert f" {state.inline_below_bytes >> 10} KiB" in text
    assert f" {state.memory_limit_bytes >> 20} MiB" in text
