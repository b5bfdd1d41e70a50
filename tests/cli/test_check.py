"""`stateflow check`: what it says of each state, column and problem, and with which exit code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from stateflow.cli import main
from stateflow.errors import IncompatibleState
from stateflow.recovery import JobCode, SavepointAsk, create_savepoint, plan_restore
from stateflow.runtime import stores
from stateflow.runtime.proposing import RestoreOptions
from stateflow.testing.sinks import FolderSink
from tests.errors.kit import BUILD, JOB, Bench, contents

VALUE = 'ValueStateDescriptor("total", int)'


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path)
    yield found
    stores.close_all()


def _job(declared: str, more: str = "") -> str:
    """The job with another declaration, and more of them."""
    assert VALUE in JOB
    return JOB.replace(f"ctx.get_state({VALUE})", f"ctx.get_state({declared})\n        {more}")


def _check(bench: Bench, *more: str, against: str = "") -> Result:
    sets = [part for name, value in bench.settings.items() for part in ("--set", f"{name}={value}")]
    before = contents(Path(bench.root))
    shown = CliRunner().invoke(
        main, ["check", str(bench.job), "--against", against or bench.root, *sets, *more]
    )
    assert contents(Path(bench.root)) == before
    return shown


def _report(bench: Bench, against: str = "") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_check(bench, "--json", against=against).output)
    return found


@pytest.mark.parametrize(
    "setting, code", [("name=other", "config"), ("max_parallelism=64", "wrong-job-root")]
)
def test_what_a_run_from_a_savepoint_refuses_is_a_problem(bench: Bench, setting: str, code: str) -> None:
    bench.run()
    made = create_savepoint(bench.root, SavepointAsk(name="before", from_head=True))
    checked = _check(bench, "--set", setting, "--json", against=made.path)
    refused = CliRunner().invoke(
        main,
        [
            "run",
            str(bench.job),
            "--job-root",
            f"{bench.folder}/new",
            "--from-savepoint",
            made.path,
            "--set",
            setting,
        ],
    )
    assert [problem["code"] for problem in json.loads(checked.output)["problems"]] == [code]
    assert (checked.exit_code, refused.exit_code) == (20, 2)


def test_a_job_that_has_not_changed_fits_as_is(bench: Bench) -> None:
    bench.run()
    shown = _check(bench, "--exact")
    assert shown.exit_code == 0
    assert shown.output.splitlines()[1:] == ["  sum, state total: as is"]
    assert ": as is" in shown.output.splitlines()[0]


def test_a_function_that_declares_its_states_when_it_is_initialized_is_looked_at_too(bench: Bench) -> None:
    bench.run()
    text = JOB.replace(
        "class Sum(KeyedProcessFunction)", "class Sum(KeyedProcessFunction, CheckpointedFunction)"
    )
    text = text.replace("def open(self, ctx):", "def initialize_state(self, ctx):")
    text = text.replace(f"ctx.get_state({VALUE})", f"ctx.get_keyed_state_store().get_state({VALUE})")
    text = text.replace(
        "    def process_element",
        "    def snapshot_state(self, ctx):\n        pass\n\n    def process_element",
    )
    bench.job.write_text(
        (text + BUILD).replace("import FileSource", "import CheckpointedFunction, FileSource")
    )
    assert _check(bench, "--exact").output.splitlines()[1:] == ["  sum, state total: as is"]


def test_a_widened_state_fits_after_migration_and_ends_with_ten_when_asked(bench: Bench) -> None:
    bench.run()
    bench.write(BUILD, _job('ValueStateDescriptor("total", float)'))
    shown = _check(bench)
    assert shown.exit_code == 0
    assert "sum, state total: after migration" in shown.output and "int is read as float" in shown.output
    assert _check(bench, "--exact").exit_code == 10


def test_an_incompatible_state_ends_with_twenty_and_says_why_and_what_to_do(bench: Bench) -> None:
    bench.run()
    bench.write(BUILD, _job('ValueStateDescriptor("total", str)'))
    shown = _check(bench)
    assert shown.exit_code == 20
    for said in ("incompatible", "stored: int", "declared: str", "way out: give the new state a new name"):
        assert said in shown.output
    (state,) = _report(bench)["states"]
    assert state["conflicts"][0]["stored"] == "int"


def test_new_and_dropped_states_are_told(bench: Bench) -> None:
    bench.run()
    bench.write(BUILD, _job('ValueStateDescriptor("sum", int)'))
    found = _report(bench)
    assert [(s["state"], s["fit"]) for s in found["states"]] == [("sum", "new"), ("total", "dropped")]
    assert found["fit"] == "after migration"


def test_source_columns_that_came_and_went_are_told(bench: Bench) -> None:
    bench.run()
    row = "    key: str\n    number: int\n\n\nclass Total"
    assert row in JOB
    bench.write(
        BUILD,
        JOB.replace(row, "    key: str\n    number: int\n    more: float | None = None\n\n\nclass Total"),
    )
    assert _report(bench)["columns"] == [
        {"source": "rows", "column": "more", "change": "new", "before": "", "now": "double"}
    ]
    assert "source rows, column more: new (double)" in _check(bench).output


def test_what_a_start_would_refuse_besides_states_is_told_too(bench: Bench) -> None:
    bench.run()
    bench.write(BUILD.replace('uid="sum"', 'uid="other"'))
    shown = _check(bench)
    assert shown.exit_code == 20
    assert "refused [config]" in shown.output and "--drop UID" in shown.output
    found = _report(bench)
    assert [(s["operator"], s["fit"]) for s in found["states"]] == [("other", "new"), ("sum", "dropped")]


def test_a_savepoint_is_compared_as_a_root_is(bench: Bench) -> None:
    bench.run()
    made = create_savepoint(bench.root, SavepointAsk(name="before", from_head=True))
    bench.write(BUILD, _job('ValueStateDescriptor("total", float)'))
    found = _report(bench, made.path)
    assert found["at"].startswith("savepoint before") and found["fit"] == "after migration"


def test_a_restore_to_values_that_cannot_be_read_is_refused_when_it_is_planned(bench: Bench) -> None:
    bench.run()
    create_savepoint(bench.root, SavepointAsk(name="before", from_head=True))
    bench.write(BUILD, _job('ValueStateDescriptor("total", str)'))
    before = contents(Path(bench.root))
    with pytest.raises(IncompatibleState) as refused:
        plan_restore(bench.root, JobCode(bench.job, (dict(bench.settings),)), "before", RestoreOptions())
    assert refused.value.facts["operator"] == "sum"
    assert contents(Path(bench.root)) == before


def test_a_state_goes_through_versions_and_back_with_its_values(bench: Bench) -> None:
    """int -> float -> int | float; and a run with the first version, which is refused and changes nothing."""
    bench.write(BUILD.replace("source()", "source(4)"), _sliced(JOB))
    bench.run()
    bench.write(BUILD.replace("source()", "source(8)"), _sliced(_job('ValueStateDescriptor("total", float)')))
    bench.run()
    bench.write(BUILD.replace("source()", "source(12)"), _sliced(JOB))
    before = contents(Path(bench.root))
    with pytest.raises(IncompatibleState):
        bench.run()
    assert contents(Path(bench.root)) == before
    bench.write(
        BUILD.replace("source()", "source(12)"), _sliced(_job('ValueStateDescriptor("total", int | float)'))
    )
    assert _report(bench)["fit"] == "after migration"
    bench.run()
    rows = FolderSink(bench.folder / "table").rows()
    assert max(row["total"] for row in rows if row["key"] == "a") == 0 + 3 + 6 + 9


def _sliced(text: str) -> str:
    """The job over the first rows only, with totals that are written as whole numbers."""
    text = text.replace("def source():", "def source(upto):").replace("Row, ROWS,", "Row, ROWS[:upto],")
    return text.replace("Total(row.key, self.total.value())", "Total(row.key, int(self.total.value()))")


def test_a_root_without_a_checkpoint_takes_any_job(bench: Bench) -> None:
    bench.write(BUILD.replace("Sum()", "Fail()"), JOB + FAILS)
    with pytest.raises(Exception, match="stops"):
        bench.run()
    bench.write(BUILD)
    found = _report(bench)
    assert (found["at"], found["fit"]) == ("no checkpoint yet", "as is")
    assert [(s["state"], s["fit"]) for s in found["states"]] == [("total", "new")]


FAILS = """
class Fail(Sum):
    def process_element(self, row, ctx):
        raise ValueError("stops")

"""


def test_what_cannot_be_compared_is_an_error_with_its_own_code(bench: Bench, tmp_path: Path) -> None:
    shown = _check(bench, against=str(tmp_path / "nothing"))
    assert shown.exit_code == 2 and "neither a job root nor a savepoint" in shown.output
    bench.run()
    bench.write(BUILD, _job(VALUE, "raise OSError('no network')"))
    shown = _check(bench)
    assert shown.exit_code == 4 and "no network" in shown.output and "user-code" in shown.output


def test_the_help_has_the_exit_codes() -> None:
    shown = " ".join(CliRunner().invoke(main, ["check", "--help"]).output.split())
    for said in ("0 it fits", "10 it fits after migration", "20 it does not fit", "--exact"):
        assert said in shown


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


def _write_with_list(bench: Bench, element: str, name: str = "seen") -> None:
    text = WITH_LIST.replace('ListStateDescriptor("seen", int)', f'ListStateDescriptor("{name}", {element})')
    bench.job.write_text((text + BUILD).replace(*LIST_IMPORTS))


@pytest.mark.parametrize(("element", "fit", "code"), [
    ("int", "as is", 0), ("float", "after migration", 10), ("str", "incompatible", 20),
])  # fmt: skip
def test_operator_state_is_judged_by_the_rules_of_keyed_state(
    bench: Bench, element: str, fit: str, code: int
) -> None:
    _write_with_list(bench, "int")
    bench.run()
    _write_with_list(bench, element)
    shown = _check(bench, "--exact")
    assert shown.exit_code == code
    assert f"  sum, operator state seen: {fit}" in shown.output.splitlines()
    assert "  sum, state total: as is" in shown.output.splitlines()


def test_operator_state_that_came_and_went_is_told(bench: Bench) -> None:
    _write_with_list(bench, "int")
    bench.run()
    _write_with_list(bench, "int", name="other")
    states = [(s["kind"], s["state"], s["fit"]) for s in _report(bench)["states"]]
    assert states == [
        ("state", "total", "as is"),
        ("operator state", "other", "new"),
        ("operator state", "seen", "dropped"),
    ]


def test_a_start_refuses_operator_state_that_cannot_be_read_before_it_claims(bench: Bench) -> None:
    _write_with_list(bench, "int")
    bench.run()
    _write_with_list(bench, "str")
    before = contents(Path(bench.root))
    with pytest.raises(IncompatibleState, match="declared as something else") as refused:
        bench.run()
    assert refused.value.facts["name"] == "seen"
    assert contents(Path(bench.root)) == before
