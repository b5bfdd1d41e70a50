"""`stateflow check`: how each state, each column and the job as a whole fit, and with which exit code."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from syrupy.assertion import SnapshotAssertion

from stateflow.checkpoint.restore.plan_document import GraphChanges
from stateflow.errors import ConfigError, IncompatibleState, UserCodeError
from stateflow.operations.compatibility import Change
from stateflow.operations.job_root import JobCode
from stateflow.operations.job_savepoints import SavepointRequest, create_savepoint
from stateflow.operations.restores import plan_restore
from stateflow.runtime.restore.planner import RestoreOptions
from stateflow.runtime.task import store_cache
from stateflow.state.schema_compatibility import Fit
from tests.support.cli_fixture import BUILD, JOB, CliFixture, contents, invoke
from tests.support.errors import ReportedError, raises, reported_error
from tests.support.screens import normalized

VALUE = 'ValueStateDescriptor("total", int)'
LIST = 'ListStateDescriptor("seen", int)'
ROW = "    key: str\n    number: int\n"
METHODS = f"""
    def initialize_state(self, ctx):
        self.seen = ctx.get_operator_state_store().get_list_state({LIST})

    def snapshot_state(self, ctx):
        self.seen.update([7])

    def process_element"""
BOTH_KINDS = (
    JOB.replace("import FileSource", "import CheckpointedFunction, FileSource, ListStateDescriptor")
    .replace("class Sum(KeyedProcessFunction)", "class Sum(KeyedProcessFunction, CheckpointedFunction)")
    .replace("\n    def process_element", METHODS)
) + BUILD
"""A job with keyed state and operator state."""


def _check(cli: CliFixture, *more: str, against: str = "") -> Result:
    sets = [part for name, value in cli.settings.items() for part in ("--set", f"{name}={value}")]
    before = contents(Path(cli.root))
    shown = invoke("check", str(cli.job), "--against", against or cli.root, *sets, *more)
    assert contents(Path(cli.root)) == before
    return shown


def _report(cli: CliFixture, against: str = "") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_check(cli, "--json", against=against).output)
    return found


def test_without_something_to_compare_with_the_other_command_is_named(cli: CliFixture) -> None:
    shown = invoke("check", str(cli.job))
    assert shown.exit_code == 2 and "stateflow explain" in shown.stderr


# -- one checkpoint, and jobs that differ from the one that made it ---------------------------------------------------

TOTAL, SEEN, OTHER = "sum state total", "sum operator state seen", "sum operator state other"


@dataclass(frozen=True)
class Case:
    """An edited job, and how it fits.

    Attributes:
        edits: texts of the job file, and what replaces them.
        states: those that do not fit as is.
        columns: name, change and new type of those that changed.
        refused: facts of the error of a start; empty where the job can start.
    """

    edits: dict[str, str]
    fit: Fit = Fit.AS_IS
    states: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[tuple[str, str, str], ...] = ()
    refused: dict[str, object] = field(default_factory=dict)
    code: str = "incompatible-state"


CASES = {
    "unchanged": Case({}),
    "declared-in-initialize-state": Case(
        {
            f"self.total = ctx.get_state({VALUE})": "pass",
            "self.seen =": f"self.total = ctx.get_keyed_state_store().get_state({VALUE})\n        self.seen =",
        }
    ),
    "wider-value": Case({VALUE: VALUE.replace("int", "float")}, Fit.MIGRATION, {TOTAL: Fit.MIGRATION}),
    "wider-element": Case({LIST: LIST.replace("int", "float")}, Fit.MIGRATION, {SEEN: Fit.MIGRATION}),
    "new-column": Case(
        {ROW: f"{ROW}    more: float | None = None\n"}, Fit.MIGRATION, columns=(("more", Change.NEW, "double"),)
    ),
    "other-value": Case(
        {VALUE: VALUE.replace("int", "str")},
        Fit.INCOMPATIBLE,
        {TOTAL: Fit.INCOMPATIBLE},
        refused={"operator": "sum", "name": "total", "stored": "int", "declared": "str"},
    ),
    "other-element": Case(
        {LIST: LIST.replace("int", "str")},
        Fit.INCOMPATIBLE,
        {SEEN: Fit.INCOMPATIBLE},
        refused={"operator": "sum", "name": "seen", "stored": "int", "declared": "str"},
    ),
    "other-name": Case(
        {VALUE: VALUE.replace("total", "sum")}, Fit.MIGRATION, {TOTAL: Change.DROPPED, "sum state sum": Change.NEW}
    ),
    "other-name-of-a-list": Case(
        {LIST: LIST.replace("seen", "other")}, Fit.MIGRATION, {SEEN: Change.DROPPED, OTHER: Change.NEW}
    ),
    "other-uid": Case(
        {'uid="sum"': 'uid="other"'},
        Fit.INCOMPATIBLE,
        {TOTAL: Change.DROPPED, SEEN: Change.DROPPED}
        | dict.fromkeys(("other state total", "other operator state seen"), Change.NEW),
        refused={"uids": ["sum"]},
        code="config",
    ),
    "other-uid-of-a-sink": Case(
        {'uid="totals"': 'uid="sums"'}, Fit.INCOMPATIBLE, refused={"sink": "sums", "before": "totals"}, code="config"
    ),
}
EXIT_CODES = {Fit.AS_IS: (0, 0), Fit.MIGRATION: (0, 10), Fit.INCOMPATIBLE: (20, 20)}
"""Without and with ``--exact``."""


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[CliFixture, str]]:
    cli = CliFixture(tmp_path_factory.mktemp("stored"))
    cli.settings["checkpoints.asynchronous"] = "no"
    cli.job.write_text(BOTH_KINDS)
    cli.run()
    yield cli, create_savepoint(cli.root, SavepointRequest(name="before", from_head=True)).path
    store_cache.close_all()


def _edit(cli: CliFixture, case: Case) -> None:
    text = BOTH_KINDS
    for old, new in case.edits.items():
        assert old in text
        text = text.replace(old, new)
    cli.job.write_text(text)


@pytest.mark.parametrize("name", CASES)
def test_an_edited_job_fits_as_its_states_and_columns_do(
    stored: tuple[CliFixture, str], name: str, golden: SnapshotAssertion
) -> None:
    (cli, savepoint), case = stored, CASES[name]
    _edit(cli, case)
    shown, report = _check(cli), _report(cli)
    assert (shown.exit_code, _check(cli, "--exact").exit_code) == EXIT_CODES[case.fit]
    assert normalized(shown.output, folder=cli.folder) == golden
    fits = {f"{s['operator']} {s['kind']} {s['state']}": s["fit"] for s in report["states"]}
    assert (report["fit"], fits) == (case.fit, {TOTAL: Fit.AS_IS, SEEN: Fit.AS_IS, **case.states})
    assert [(c["column"], c["change"], c["now"]) for c in report["columns"]] == list(case.columns)
    conflicts = [conflict for state in report["states"] for conflict in state["conflicts"]]
    assert all(case.refused.items() >= {k: c[k] for k in ("stored", "declared")}.items() for c in conflicts)
    assert all(conflict["reason"] and conflict["way_out"] for conflict in conflicts)
    # The problems are those that no state shows.
    assert [problem["code"] for problem in report["problems"]] == ["config"] * (case.code == "config")
    against_savepoint = _report(cli, savepoint)
    assert against_savepoint["against"] == savepoint
    assert [against_savepoint[part] for part in ("states", "columns")] == [report["states"], report["columns"]]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.refused])
def test_a_start_refuses_what_the_check_calls_incompatible(stored: tuple[CliFixture, str], name: str) -> None:
    (cli, _), case = stored, CASES[name]
    _edit(cli, case)
    before = contents(Path(cli.root))
    with raises(ConfigError if case.code == "config" else IncompatibleState, **case.refused):
        cli.run()
    if case.code != "config":
        with raises(IncompatibleState, **case.refused):
            plan_restore(cli.root, JobCode(cli.job, (dict(cli.settings),)), "before", RestoreOptions())
    assert contents(Path(cli.root)) == before


def test_what_a_run_from_a_savepoint_refuses_is_a_problem(stored: tuple[CliFixture, str]) -> None:
    cli, savepoint = stored
    _edit(cli, CASES["unchanged"])
    checked = _check(cli, "--set", "name=other", "--json", against=savepoint)
    begun = ("run", str(cli.job), "--job-root", f"{cli.folder}/new", "--from-savepoint", savepoint)
    refused = invoke(*begun, "--set", "name=other")
    assert [problem["code"] for problem in json.loads(checked.output)["problems"]] == ["config"]
    assert (checked.exit_code, refused.exit_code) == (20, 2)


# -- with the options of a restore ------------------------------------------------------------------------------------

MAPPED = {
    "operator": ("other-uid", ("--map", "sum=other")),
    "state": ("other-name", ("--map", "sum.total=sum.sum")),
    "dropped-state": ("other-uid", ("--map", "sum=other", "--drop", "sum.seen")),
    "dropped-operator": ("other-uid", ("--drop", "sum")),
    "unknown-name": ("other-uid", ("--map", "sums=other")),
    "other-value": ("other-value", ("--map", "sum.seen=sum.seen")),
}
"""An edited job, and the options with which it is checked."""


@pytest.mark.parametrize("name", MAPPED)
def test_a_check_maps_a_graph_as_a_restore_does(
    stored: tuple[CliFixture, str], name: str, golden: SnapshotAssertion
) -> None:
    (cli, _), (case, options) = stored, MAPPED[name]
    _edit(cli, CASES[case])
    shown = _check(cli, *options)
    assert normalized(shown.output, folder=cli.folder) == golden
    changes = GraphChanges(maps=tuple(value for option, value in _pairs(options) if option == "--map"))
    dropped = frozenset(value for option, value in _pairs(options) if option == "--drop")
    code = JobCode(cli.job, (dict(cli.settings),))
    try:
        plan_restore(cli.root, code, "before", RestoreOptions(drop=dropped, changes=changes))
    except ConfigError:
        assert shown.exit_code == 20
    else:
        assert shown.exit_code == 0


def _pairs(options: tuple[str, ...]) -> list[tuple[str, str]]:
    return list(zip(options[::2], options[1::2], strict=True))


RAW = """
        raw = ctx.get_raw_keyed_state_output()
        raw.start_new_key_group(0)
        raw.write(b"x")

    def process_element"""


def test_raw_keyed_state_with_another_max_parallelism_is_refused_before_anything_changes(cli: CliFixture) -> None:
    cli.settings["parallelism"] = "1"
    cli.job.write_text(BOTH_KINDS.replace("\n\n    def process_element", RAW))
    cli.run()
    savepoint = create_savepoint(cli.root, SavepointRequest(name="raw", from_head=True)).path
    for groups, code in (("128", 0), ("64", 20)):
        cli.settings["max_parallelism"] = groups
        checked = _check(cli, "--json", against=savepoint)
        assert checked.exit_code == code
        problems = json.loads(checked.output)["problems"]
        assert [problem["code"] for problem in problems] == ["incompatible-state"] * (code == 20)
    new = cli.folder / "new"
    refused = invoke(
        *("run", str(cli.job), "--job-root", str(new), "--from-savepoint", savepoint, "--set", "max_parallelism=64")
    )
    assert (refused.exit_code, reported_error(refused.stderr)) == (
        2,
        ReportedError("incompatible-state", {"operator": "sum"}),
    )
    assert not new.exists()


# -- what cannot be compared ------------------------------------------------------------------------------------------


def test_what_cannot_be_compared_is_an_error_with_its_own_code(stored: tuple[CliFixture, str], tmp_path: Path) -> None:
    cli, _ = stored
    shown = _check(cli, against=str(tmp_path / "nothing"))
    assert shown.exit_code == 2
    assert reported_error(shown.stderr) == ReportedError("config", {"against": (tmp_path / "nothing").as_uri()})
    _edit(cli, Case({"self.total = ctx": "raise OSError('no network')\n        self.total = ctx"}))
    shown = _check(cli)
    error = reported_error(shown.stderr)
    assert (shown.exit_code, error.code, error.facts["operator"]) == (4, "user-code", "sum")
    assert "OSError: no network" in shown.stderr


# -- a job that continues ---------------------------------------------------------------------------------------------


def test_a_root_without_a_checkpoint_takes_any_job(cli: CliFixture, golden: SnapshotAssertion) -> None:
    cli.write(BUILD, JOB.replace("yield Total(", "raise ValueError('stops')\n        yield Total("))
    with raises(UserCodeError, operator="sum"):
        cli.run()
    cli.write(BUILD)
    report = _report(cli)
    assert (report["fit"], [s["fit"] for s in report["states"]]) == (Fit.AS_IS, [Change.NEW])
    assert normalized(_check(cli).output) == golden


def test_a_new_sink_with_a_table_of_its_own_and_a_removed_sink_are_no_changed_uid(cli: CliFixture) -> None:
    cli.run()
    cli.write(BUILD.replace('sink(), uid="totals"', 'FolderSink(HERE / "other"), uid="sums"'))
    assert (_report(cli)["fit"], _report(cli)["problems"]) == (Fit.AS_IS, [])
    cli.run()
    # Both have published now: either may go.
    cli.write(BUILD)
    assert _report(cli)["problems"] == []
