"""The guides about writing and testing jobs and choosing state: all of their code runs, what they show is printed."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from stateflow.config.sources import resolve
from stateflow.environment import declare
from stateflow.state.schema.compatibility import Fit
from stateflow.testing import BroadcastInput, KeyedHarness, KeyedInput
from tests.docs.modules import load_module
from tests.support.commands import invoke

GUIDES = Path(__file__).parents[2] / "docs" / "guides"


def _text(guide: str) -> str:
    return (GUIDES / f"{guide}.md").read_text(encoding="utf-8")


def _blocks(guide: str, language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", _text(guide), re.MULTILINE | re.DOTALL)
    return [block for of, block in found if of == language]


def _write_job(folder: Path) -> Path:
    *job, dag = _blocks("write-a-job", "python")
    assert "stateflow_dags" in dag
    path = folder / "payments_job.py"
    path.write_text("\n\n".join(job))
    return path


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Path]:
    yield _write_job(tmp_path)
    sys.modules.pop("payments_job", None)


def _command(word: str, job: Path, folder: Path) -> list[str]:
    """A command of the guide, with the paths of a test."""
    (block,) = [b for b in _blocks("write-a-job", "") if b.startswith(f"stateflow {word} ")]
    words = shlex.split(block.replace("\\\n", ""))[1:]
    return [w.replace("payments_job.py", str(job)).replace("/data/", f"{folder}/") for w in words]


# -- write a job --------------------------------------------------------------------------------------------------


def test_the_plan_is_drawn_as_the_guide_shows(job: Path, tmp_path: Path) -> None:
    # A folder that is not there would be reported.
    (tmp_path / "payments").mkdir()
    shown = invoke(*_command("plan", job, tmp_path))
    assert shown.exit_code == 0, shown.output
    (drawn,) = _blocks("write-a-job", "text")
    assert shown.output.replace(str(tmp_path), "/data") == drawn


def _expected_visits(payments: list[tuple[str, datetime]], gap: timedelta) -> Counter[tuple[str, int]]:
    """Cards with the numbers of payments that have less than the gap between them."""
    found: Counter[tuple[str, int]] = Counter()
    for card in {card for card, _ in payments}:
        times = sorted(at for of, at in payments if of == card)
        ends = [n for n, at in enumerate(times, 1) if n == len(times) or times[n] - at >= gap]
        found.update((card, end - start) for start, end in pairwise([0, *ends]))
    return found


def test_visits_do_not_depend_on_batches(job: Path) -> None:
    module, minute = load_module(job), timedelta(minutes=1)
    noon, bound = datetime(2026, 3, 1, 12), 5 * minute  # noqa: DTZ001
    by_card = KeyedInput(module.Payment, "card", ("at",), event_time="at", out_of_orderness=bound)
    arrivals = st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 60).map(lambda n: n * 5), st.integers(0, 5)), max_size=20
    )

    @given(arrivals, st.lists(st.integers(0, 20), max_size=5))
    def check(arrivals: list[tuple[str, int, int]], cuts: list[int]) -> None:
        arrivals = sorted(arrivals, key=lambda each: each[1] + each[2])
        payments = [(card, noon + at * minute) for card, at, _ in arrivals]
        places = [0, *sorted(min(cut, len(payments)) for cut in cuts), len(payments)]
        with KeyedHarness(module.Visits(), by_card, output=module.Visit, side_outputs=[module.LATE]) as h:
            for start, end in pairwise(places):
                h.push(*((card, at, 1.0) for card, at in payments[start:end]))
            h.drain()
            assert h.side_output(module.LATE) == [] and h.state_entries() == []
            visits = Counter((row.card, row.payments) for row in h.output)
        assert visits == _expected_visits(payments, 30 * minute)

    check()


def _deliver(folder: Path) -> None:
    def payment(card: str, minute: int, amount: float) -> dict[str, Any]:
        return {"card": card, "at": datetime(2026, 3, 1, 12) + timedelta(minutes=minute), "amount": amount}  # noqa: DTZ001

    schema = pa.schema([("card", pa.string()), ("at", pa.timestamp("us")), ("amount", pa.float64())])
    files = [
        # Of card c, two payments five hours apart in one batch, and between batches.
        [payment("a", 0, 5.0), payment("a", 20, 7.0), payment("b", 1, -1.0), payment("c", 21, 1.0)],
        [payment("c", 321, 2.0), payment("c", 20, 4.0), payment("b", 325, 3.0)],
        [payment("c", 621, 8.0), payment("c", 921, 16.0)],
        [payment("a", 1, 1.0)],
    ]
    for number, rows in enumerate(files):
        path = folder / f"{number}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, schema), path)
        # Spark takes files in order of their times, which three in a millisecond do not have.
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def _typed(command: list[str]) -> str:
    """What a process of its own prints: Spark starts in it."""
    done = subprocess.run([sys.executable, "-m", "stateflow", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.spark
def test_the_job_runs_and_its_state_fits_itself(job: Path, tmp_path: Path) -> None:
    (tmp_path / "payments").mkdir()
    _deliver(tmp_path / "payments")
    more = ["--set", f"local_dir={tmp_path}/local", "--set", "source.max_files_per_batch=1"]
    _typed([*_command("run", job, tmp_path), *more])

    def table(name: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = DeltaTable(tmp_path / "tables" / name).to_pyarrow_table().to_pylist()
        return rows

    def visits() -> list[tuple[str, int, float]]:
        return sorted((row["card"], row["payments"], row["total"]) for row in table("visits"))

    ended = [("a", 2, 12.0), ("b", 1, 3.0), ("c", 1, 2.0), ("c", 1, 8.0), ("c", 2, 5.0)]
    assert visits() == ended
    assert [row["amount"] for row in table("late")] == [1.0]
    _typed([*_command("run", job, tmp_path), *more, "--drain"])
    assert visits() == sorted([*ended, ("c", 1, 16.0)])
    assert [json.loads(row["row"])["amount"] for row in table("dead_letters")] == [-1.0]
    (state,) = json.loads(_typed([*_command("check", job, tmp_path), "--json"]))["states"]
    assert (state["operator"], state["state"], state["fit"]) == ("find-visits", "visits", Fit.AS_IS)


def test_the_settings_of_the_dag_are_the_parameters_of_the_job(job: Path) -> None:
    *code, dag = _blocks("write-a-job", "python")
    given: dict[str, Any] = {}
    block = dag.replace("from stateflow_airflow.dags import", "from stateflow_airflow.dags import (").replace(
        "StateflowJob, stateflow_dags\n", "StateflowJob, stateflow_dags as _)\n"
    )
    exec(block, {"stateflow_dags": lambda **arguments: given.update(arguments)})
    parameters = re.findall(r'parameter\("(\w+)"\)', "".join(code))
    assert set(given["job"].settings) == {f"job.{name}" for name in parameters}
    assert Path(given["application"]).name == job.name


# -- test a job ---------------------------------------------------------------------------------------------------


def _names_of_tests() -> list[str]:
    names = re.findall(r"^def (test_\w+)", "".join(_blocks("test-a-job", "python")), re.MULTILINE)
    assert len(names) >= 8
    return names


@contextmanager
def _guide_tests(folder: Path, right: str = "", wrong: str = "") -> Iterator[ModuleType]:
    """The tests of the guide, over the job of the other; with something in it exchanged."""
    job, tests = _write_job(folder), folder / "test_payments_job.py"
    text = job.read_text()
    assert right in text
    job.write_text(text.replace(right, wrong) if right else text)
    tests.write_text("\n\n".join(_blocks("test-a-job", "python")))
    try:
        load_module(job)
        yield load_module(tests)
    finally:
        for path in (job, tests):
            sys.modules.pop(path.stem, None)


@pytest.mark.parametrize("name", _names_of_tests())
def test_the_tests_of_the_guide_pass(tmp_path: Path, name: str) -> None:
    with _guide_tests(tmp_path) as guide:
        test = getattr(guide, name)
        marks = getattr(test, "pytestmark", [])
        for value in marks[0].args[1] if marks else [None]:
            test(*([] if value is None else [value]))


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("visit.last + GAP)", "visit.last + GAP + 1)"),
        ("visit.total += other.total", "pass"),
        ("        self.visits.update([visit for", "        ([visit for"),
        # The trap: whatever comes before the timer belongs to the open visit.
        ("if other.first - GAP < time < other.last + GAP:", "if True:"),
    ],
)
def test_the_tests_of_the_guide_find_mistakes(tmp_path: Path, right: str, wrong: str) -> None:
    with _guide_tests(tmp_path, right, wrong) as guide:
        tests = (
            guide.test_payments_close_together_are_one_visit,
            guide.test_a_visit_that_has_ended_leaves_nothing_behind,
            lambda: guide.test_payments_may_come_out_of_order(2),
        )
        assert any(map(_fails, tests))


def _fails(test: Any) -> bool:
    try:
        test()
    except AssertionError:
        return True
    return False


# -- choose state -------------------------------------------------------------------------------------------------


@pytest.fixture
def guide() -> SimpleNamespace:
    """What the blocks of the guide define, which have no names but their own."""
    found: dict[str, Any] = {}
    exec(compile("\n\n".join(_blocks("choose-state", "python")), "choose-state.md", "exec", dont_inherit=True), found)
    return SimpleNamespace(**found)


def _harness(guide: SimpleNamespace, function: str, *inputs: BroadcastInput) -> KeyedHarness:
    rows = KeyedInput(guide.Payment, key_by="user")
    return KeyedHarness(getattr(guide, function)(), rows, *inputs, output=guide.Summary)


def test_every_kind_of_keyed_state_of_the_guide_works(guide: SimpleNamespace) -> None:
    with _harness(guide, "Profile") as h:
        assert h.push(("u", 4.0, "s"), ("u", 2.0, "s")) == [guide.Summary("u", 4.0, 4.0), guide.Summary("u", 4.0, 3.0)]
        kept = {name: h.state(name, "u") for name in ("last", "amounts", "by-shop", "largest", "mean")}
        assert kept == {"last": 2.0, "amounts": [4.0, 2.0], "by-shop": {"s": 2}, "largest": 4.0, "mean": 3.0}


def test_the_time_to_live_of_the_guide_begins_anew_with_each_read(guide: SimpleNamespace) -> None:
    day = 24 * 60 * 60 * 1000
    with _harness(guide, "Recent") as h:
        for now in (0, 6, 12):
            h.advance_processing_time(now * day)
            h.push(("u", 1.0, "s"))
        h.advance_processing_time(19 * day)
        h.push(("u", 1.0, "s"))
        assert [row.first for row in h.output] == [1.0, 2.0, 3.0, 1.0]


def test_the_operator_states_of_the_guide_work(guide: SimpleNamespace) -> None:
    with _harness(guide, "OverLimit", BroadcastInput(guide.Limit)) as h:
        assert h.push_both([("u", 9.0, "s"), ("u", 4.0, "s")], [("s", 5.0)]) == [guide.Summary("u", 9.0, 5.0)]
        assert h.broadcast_state(guide.LIMITS) == {"s": 5.0}
    with _harness(guide, "Sampled") as h:
        h.push(*(("u", float(n), "s") for n in range(150)))
        assert h.operator_state("sample") == [[float(n) for n in range(50, 150)]]


def test_the_vectorized_function_of_the_guide_works(guide: SimpleNamespace) -> None:
    with _harness(guide, "Totals") as h:
        h.push(("u", 1.0, "s"), ("u", 2.0, "s"))
        assert h.push(("u", 3.0, "s")) == [guide.Summary("u", 6.0, 3.0)]


def test_the_settings_of_the_guide_choose_backends(guide: SimpleNamespace) -> None:
    (block,) = _blocks("choose-state", "toml")
    assert resolve({"state.backend": tomllib.loads(block)["state"]["backend"]}).state.backend == "filesystem"
    _, settings = declare(guide.build, "job", ())
    assert (settings.state.backend, settings.state.incremental) == ("rocksdb", True)


def test_the_limits_that_the_guide_names_are_the_defaults() -> None:
    text, state = _text("choose-state"), resolve().state
    assert f" {state.inline_below_bytes >> 10} KiB" in text
    assert f" {state.memory_limit_bytes >> 20} MiB" in text
