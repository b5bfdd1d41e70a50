"""`stateflow check`: how each state, each column and the job as a whole fit, and with which exit code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from syrupy.assertion import SnapshotAssertion

from stateflow.errors import IncompatibleState, UserCodeError
from stateflow.operations.compatibility import Change
from stateflow.operations.job_root import JobCode
from stateflow.operations.restores import plan_restore
from stateflow.operations.savepoints import SavepointRequest, create_savepoint
from stateflow.runtime.restore.planner import RestoreOptions
from stateflow.runtime.task import store_cache
from stateflow.state.schema.compatibility import Fit
from stateflow.testing.sinks import FolderSink
from tests.support.cli_fixture import BUILD, JOB, CliFixture, contents
from tests.support.commands import invoke
from tests.support.errors import raises, reported_error
from tests.support.screens import normalized

VALUE = 'ValueStateDescriptor("total", int)'


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[CliFixture]:
    found = CliFixture(tmp_path)
    # Else two batches may share a checkpoint, and its number is not always the same.
    found.settings["checkpoints.asynchronous"] = "no"
    yield found
    store_cache.close_all()


def _job(declared: str, more: str = "") -> str:
    """The job with another declaration, and more of them."""
    assert VALUE in JOB
    return JOB.replace(f"ctx.get_state({VALUE})", f"ctx.get_state({declared})\n        {more}")


def _check(bench: CliFixture, *more: str, against: str = "") -> Result:
    sets = [part for name, value in bench.settings.items() for part in ("--set", f"{name}={value}")]
    before = contents(Path(bench.root))
    shown = invoke("check", str(bench.job), "--against", against or bench.root, *sets, *more)
    assert contents(Path(bench.root)) == before
    return shown


def _report(bench: CliFixture, against: str = "") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_check(bench, "--json", against=against).output)
    return found


def _fits(report: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(s["kind"], s["state"], s["fit"]) for s in report["states"]]


@pytest.mark.parametrize("setting, code", [("name=other", "config"), ("max_parallelism=64", "wrong-job-root")])
def test_what_a_run_from_a_savepoint_refuses_is_a_problem(bench: CliFixture, setting: str, code: str) -> None:
    bench.run()
    made = create_savepoint(bench.root, SavepointRequest(name="before", from_head=True))
    checked = _check(bench, "--set", setting, "--json", against=made.path)
    begun = ("run", str(bench.job), "--job-root", f"{bench.folder}/new", "--from-savepoint", made.path)
    refused = invoke(*begun, "--set", setting)
    assert [problem["code"] for problem in json.loads(checked.output)["problems"]] == [code]
    assert (checked.exit_code, refused.exit_code) == (20, 2)


def test_a_job_that_has_not_changed_fits_as_is(bench: CliFixture, golden: SnapshotAssertion) -> None:
    bench.run()
    shown = _check(bench, "--exact")
    assert shown.exit_code == 0
    assert normalized(shown.output) == golden
    found = _report(bench)
    assert (found["fit"], found["columns"], found["problems"]) == (Fit.AS_IS, [], [])
    assert _fits(found) == [("state", "total", Fit.AS_IS)]


def test_states_that_a_function_declares_when_it_is_initialized_are_checked_too(bench: CliFixture) -> None:
    bench.run()
    text = JOB.replace("class Sum(KeyedProcessFunction)", "class Sum(KeyedProcessFunction, CheckpointedFunction)")
    text = text.replace("def open(self, ctx):", "def initialize_state(self, ctx):")
    text = text.replace(f"ctx.get_state({VALUE})", f"ctx.get_keyed_state_store().get_state({VALUE})")
    text = text.replace(
        "    def process_element", "    def snapshot_state(self, ctx):\n        pass\n\n    def process_element"
    )
    bench.job.write_text((text + BUILD).replace("import FileSource", "import CheckpointedFunction, FileSource"))
    assert _fits(_report(bench)) == [("state", "total", Fit.AS_IS)]


ROW = "    key: str\n    number: int\n\n\nclass Total"


def test_a_widened_state_and_a_new_column_fit_after_migration(bench: CliFixture, golden: SnapshotAssertion) -> None:
    bench.run()
    assert ROW in JOB
    head = _job('ValueStateDescriptor("total", float)')
    bench.write(BUILD, head.replace(ROW, ROW.replace("\n\n\n", "\n    more: float | None = None\n\n\n")))
    shown = _check(bench)
    assert shown.exit_code == 0
    assert normalized(shown.output) == golden
    assert _check(bench, "--exact").exit_code == 10
    found = _report(bench)
    assert _fits(found) == [("state", "total", Fit.MIGRATION)]
    assert found["columns"] == [
        {"source": "rows", "column": "more", "change": Change.NEW, "before": "", "now": "double"}
    ]


def test_an_incompatible_state_has_a_reason_and_a_way_out(bench: CliFixture, golden: SnapshotAssertion) -> None:
    bench.run()
    bench.write(BUILD, _job('ValueStateDescriptor("total", str)'))
    shown = _check(bench)
    assert shown.exit_code == 20
    assert normalized(shown.output) == golden
    found = _report(bench)
    assert (found["fit"], found["problems"]) == (Fit.INCOMPATIBLE, [])
    (state,) = found["states"]
    (conflict,) = state["conflicts"]
    assert (state["fit"], conflict["stored"], conflict["declared"]) == (Fit.INCOMPATIBLE, "int", "str")
    assert conflict["reason"] and conflict["way_out"]


def test_new_and_dropped_states_are_listed(bench: CliFixture) -> None:
    bench.run()
    bench.write(BUILD, _job('ValueStateDescriptor("sum", int)'))
    found = _report(bench)
    assert _fits(found) == [("state", "sum", Change.NEW), ("state", "total", Change.DROPPED)]
    assert found["fit"] == Fit.MIGRATION


def test_what_a_start_refuses_besides_states_is_listed_too(bench: CliFixture, golden: SnapshotAssertion) -> None:
    bench.run()
    bench.write(BUILD.replace('uid="sum"', 'uid="other"'))
    shown = _check(bench)
    assert shown.exit_code == 20
    # All states fit, so the first line calls the job refused, not incompatible.
    assert normalized(shown.output) == golden
    found = _report(bench)
    assert [(s["operator"], s["fit"]) for s in found["states"]] == [("other", Change.NEW), ("sum", Change.DROPPED)]
    (problem,) = found["problems"]
    assert problem["code"] == "config" and "--drop UID" in problem["hint"]


def test_a_savepoint_is_compared_as_a_root_is(bench: CliFixture, golden: SnapshotAssertion) -> None:
    bench.run()
    made = create_savepoint(bench.root, SavepointRequest(name="before", from_head=True))
    bench.write(BUILD, _job('ValueStateDescriptor("total", float)'))
    found = _report(bench, made.path)
    assert (found["against"], found["fit"]) == (made.path, Fit.MIGRATION)
    assert normalized(_check(bench, against=made.path).output) == golden


def test_a_restore_to_values_that_cannot_be_read_is_refused_when_it_is_planned(bench: CliFixture) -> None:
    bench.run()
    create_savepoint(bench.root, SavepointRequest(name="before", from_head=True))
    bench.write(BUILD, _job('ValueStateDescriptor("total", str)'))
    before = contents(Path(bench.root))
    with raises(IncompatibleState, operator="sum", name="total", stored="int", declared="str"):
        plan_restore(bench.root, JobCode(bench.job, (dict(bench.settings),)), "before", RestoreOptions())
    assert contents(Path(bench.root)) == before


def test_a_state_goes_through_versions_and_back_with_its_values(bench: CliFixture) -> None:
    """int -> float -> int | float; and a run with the first version, which is refused and changes nothing."""
    bench.write(BUILD.replace("source()", "source(4)"), _sliced(JOB))
    bench.run()
    bench.write(BUILD.replace("source()", "source(8)"), _sliced(_job('ValueStateDescriptor("total", float)')))
    bench.run()
    bench.write(BUILD.replace("source()", "source(12)"), _sliced(JOB))
    before = contents(Path(bench.root))
    with raises(IncompatibleState, operator="sum", name="total", stored="float", declared="int"):
        bench.run()
    assert contents(Path(bench.root)) == before
    bench.write(BUILD.replace("source()", "source(12)"), _sliced(_job('ValueStateDescriptor("total", int | float)')))
    assert _report(bench)["fit"] == Fit.MIGRATION
    bench.run()
    rows = FolderSink(bench.folder / "table").rows()
    assert max(row["total"] for row in rows if row["key"] == "a") == 0 + 3 + 6 + 9


def _sliced(text: str) -> str:
    """The job over the first rows only, with totals that are written as whole numbers."""
    text = text.replace("def source():", "def source(upto):").replace("Row, ROWS,", "Row, ROWS[:upto],")
    return text.replace("Total(row.key, self.total.value())", "Total(row.key, int(self.total.value()))")


def test_a_root_without_a_checkpoint_takes_any_job(bench: CliFixture, golden: SnapshotAssertion) -> None:
    bench.write(BUILD.replace("Sum()", "Fail()"), JOB + FAILS)
    with raises(UserCodeError, operator="sum"):
        bench.run()
    bench.write(BUILD)
    found = _report(bench)
    assert (found["fit"], _fits(found)) == (Fit.AS_IS, [("state", "total", Change.NEW)])
    assert normalized(_check(bench).output) == golden


FAILS = """
class Fail(Sum):
    def process_element(self, row, ctx):
        raise ValueError("stops")

"""


def test_what_cannot_be_compared_is_an_error_with_its_own_code(bench: CliFixture, tmp_path: Path) -> None:
    shown = _check(bench, against=str(tmp_path / "nothing"))
    error = reported_error(shown.stderr)
    assert (shown.exit_code, error.code) == (2, "config")
    assert error.facts == {"against": f"file://{tmp_path / 'nothing'}"}
    bench.run()
    bench.write(BUILD, _job(VALUE, "raise OSError('no network')"))
    shown = _check(bench)
    error = reported_error(shown.stderr)
    assert (shown.exit_code, error.code, error.facts["operator"]) == (4, "user-code", "sum")
    assert "OSError: no network" in shown.stderr


WITH_LIST = JOB.replace(
    "class Sum(KeyedProcessFunction)", "class Sum(KeyedProcessFunction, CheckpointedFunction)"
).replace(
    "    def process_element",
    """    def initialize_state(self, ctx):
        self.seen = ctx.get_operator_state_store().get_list_state(ListStateDescriptor("seen", int))

    def snapshot_state(self, ctx):
        self.seen.update([7])

    def process_element""",
)
LIST_IMPORTS = ("import FileSource", "import CheckpointedFunction, FileSource, ListStateDescriptor")


def _write_with_list(bench: CliFixture, element: str, name: str = "seen") -> None:
    text = WITH_LIST.replace('ListStateDescriptor("seen", int)', f'ListStateDescriptor("{name}", {element})')
    bench.job.write_text((text + BUILD).replace(*LIST_IMPORTS))


@pytest.mark.parametrize(
    ("element", "fit", "code"), [("int", Fit.AS_IS, 0), ("float", Fit.MIGRATION, 10), ("str", Fit.INCOMPATIBLE, 20)]
)
def test_operator_state_is_judged_by_the_rules_of_keyed_state(
    bench: CliFixture, element: str, fit: Fit, code: int
) -> None:
    _write_with_list(bench, "int")
    bench.run()
    _write_with_list(bench, element)
    assert _check(bench, "--exact").exit_code == code
    assert _fits(_report(bench)) == [("state", "total", Fit.AS_IS), ("operator state", "seen", fit)]


def test_new_and_dropped_operator_state_is_listed(bench: CliFixture, golden: SnapshotAssertion) -> None:
    _write_with_list(bench, "int")
    bench.run()
    _write_with_list(bench, "int", name="other")
    assert _fits(_report(bench)) == [
        ("state", "total", Fit.AS_IS),
        ("operator state", "other", Change.NEW),
        ("operator state", "seen", Change.DROPPED),
    ]
    assert normalized(_check(bench).output) == golden


def test_a_start_refuses_operator_state_that_cannot_be_read_before_it_claims(bench: CliFixture) -> None:
    _write_with_list(bench, "int")
    bench.run()
    _write_with_list(bench, "str")
    before = contents(Path(bench.root))
    with raises(IncompatibleState, name="seen", operator="sum"):
        bench.run()
    assert contents(Path(bench.root)) == before
