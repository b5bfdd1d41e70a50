"""Operators that read, compare, copy, write and change state, and maintain tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk import Asset

import stateflow
from stateflow.checkpoint.savepoints.catalog import savepoint_at
from stateflow.compare.summary import DiffSummary
from stateflow.connectors.delta.maintenance import MaintenanceReport
from stateflow.operations import SavepointRequest, create_savepoint
from stateflow.operations.state_export import ExportReport
from stateflow.requesters import airflow_user
from stateflow.runtime.task import store_cache
from stateflow_airflow.failures import PermanentFailure
from stateflow_airflow.operators.bootstrap.write import (
    StateflowChangeSavepointOperator,
    StateflowWriteSavepointOperator,
)
from stateflow_airflow.operators.export import StateflowExportOperator
from stateflow_airflow.operators.retention import StateflowTablesOperator
from stateflow_airflow.operators.savepoint import StateflowRekeyOperator
from stateflow_airflow.operators.validation.diff import StateflowDiffOperator
from tests.airflow.fakes import FakeRun, fails
from tests.support import root_files
from tests.support.cli_fixture import CliFixture
from tests.support.json_outputs import check

FUNCTIONS = """
import pyarrow.compute as pc


def doubled(batch):
    return batch.set_column(batch.schema.get_field_index("value"), "value", pc.multiply(batch.column("value"), 2))


def broken(batch):
    raise ValueError("no")
"""
BEFORE, NEWEST = {"a": 18, "b": 22, "c": 26}, {"a": 23, "b": 22, "c": 26}
"""The job's state in its savepoint, and after one more row."""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliFixture]:
    """A job with a savepoint of three keys, of which a later batch has changed one; tests write to other folders."""
    job = CliFixture(tmp_path_factory.mktemp("job"))
    job.settings["checkpoints.asynchronous"] = "no"
    (job.folder / "rows").mkdir()
    pq.write_table(pa.table({"key": ["a", "b"], "value": [1000, 2000]}), job.folder / "rows" / "totals.parquet")
    (job.folder / "code" / "changes_by_a_dag.py").write_text(FUNCTIONS)
    job.run()
    create_savepoint(job.root, SavepointRequest(name="before", from_head=True))
    job.job.write_text(job.job.read_text().replace("\n\ndef source", '\nROWS += [Row("a", 5)]\n\n\ndef source'))
    job.run()
    yield job
    store_cache.close_all()


Make = Callable[..., Any]


def _diff(job: CliFixture, out: Path, /, **more: Any) -> Any:
    return StateflowDiffOperator(task_id="diff", **{"job_root": job.root, "snapshot": "before", **more})


def _export(job: CliFixture, out: Path, /, **more: Any) -> Any:
    given = {"job_root": job.root, "operator_uid": "sum", "state_name": "total", "into": str(out / "rows.jsonl")}
    return StateflowExportOperator(task_id="export", **{**given, "locations": [str(out)], **more})


def _rekey(job: CliFixture, out: Path, /, **more: Any) -> Any:
    given = {"savepoint": "before", "max_parallelism": "7", "into": str(out), "locations": [str(out)], **more}
    return StateflowRekeyOperator(task_id="rekey", **{"job_root": job.root, **given})


def _write(job: CliFixture, out: Path, /, **more: Any) -> Any:
    arguments: dict[str, Any] = {
        "job": str(job.job),
        "into": str(out / "first"),
        "states": f"sum.total={job.folder}/rows",
        "sources": ['rows={"row": 4}'],
        "settings": job.settings,
        "locations": [str(out), str(job.folder / "rows")],
    }
    return StateflowWriteSavepointOperator(task_id="write", **{**arguments, **more})


def _change(job: CliFixture, out: Path, /, **more: Any) -> Any:
    arguments: dict[str, Any] = {
        "savepoint": "before",
        "job_root": job.root,
        "into": str(out / "second"),
        "transforms": [f"sum.total={job.folder}/code/changes_by_a_dag.py:doubled"],
        "job": str(job.job),
        "settings": job.settings,
        "locations": [str(out)],
    }
    return StateflowChangeSavepointOperator(task_id="change", **{**arguments, **more})


def _do(operator: Any, run: FakeRun | None = None) -> Any:
    return operator.execute((run or FakeRun()).next_try())


def _totals(path: object) -> dict[str, int]:
    rows = stateflow.read_state(str(path), "sum", "total").read_all().to_pylist()
    return {row["key"]: row["value"] for row in rows}


# -- comparisons ------------------------------------------------------------------------------------------------------


def test_a_difference_beyond_the_limits_fails_the_task_with_the_states_and_keys(job: CliFixture) -> None:
    with fails(PermanentFailure, "state-differs") as caught:
        _do(_diff(job, job.folder))
    facts: dict[str, Any] = dict(caught.value.facts)
    assert [(state["operator"], state["state"], state["changed"]) for state in facts["states"]] == [("sum", "total", 1)]
    assert [(row["key"], row["change"]) for row in facts["changes"]] == [('["a"]', "changed")]
    (folder,) = Path(job.root, "savepoints").iterdir()
    assert _do(_diff(job, folder, other_root=str(folder), locations=[str(folder.parent)]))["keys"] == 0


@pytest.mark.parametrize(
    "allowed",
    [{"max_keys": "1"}, {"max_keys": None, "max_fraction": "0.34"}, {"ignored": "sum.total"}, {"max_keys": "None"}],
)
def test_a_difference_within_the_limits_is_returned(job: CliFixture, allowed: dict[str, Any]) -> None:
    returned = _do(_diff(job, job.folder, **allowed))
    check(DiffSummary, returned)
    assert [state["changed"] for state in returned["states"]] == [1]


# -- exports ----------------------------------------------------------------------------------------------------------


def test_a_task_writes_the_rows_of_a_snapshot_and_a_retry_replaces_them(job: CliFixture, tmp_path: Path) -> None:
    run, asset, output = FakeRun(), Asset("exports"), tmp_path / "2026-01-31" / "rows.jsonl"
    for snapshot, wanted in (("before", BEFORE), ("", NEWEST)):
        found = _do(_export(job, tmp_path, snapshot=snapshot, into=str(output), outlets=[asset]), run)
        check(ExportReport, found)
        rows = [json.loads(line) for line in output.read_text().splitlines()]
        assert {row["key"]: row["value"] for row in rows} == wanted
        assert (found["rows"], found["size_bytes"], run.events[asset].extra) == (3, output.stat().st_size, found)
    assert [path.name for path in output.parent.iterdir()] == ["rows.jsonl"]
    assert root_files.head(Path(job.root)).doc["pinned"] == []
    for name, stored_as in (("a.parquet", ""), ("b.rows", "parquet")):
        _do(_export(job, tmp_path, into=str(tmp_path / name), stored_as=stored_as))
        rows = pq.read_table(tmp_path / name).to_pylist()
        assert {row["key"]: row["value"] for row in rows} == NEWEST


# -- savepoints -------------------------------------------------------------------------------------------------------


def test_a_task_copies_a_savepoint_with_another_max_parallelism_once(job: CliFixture, tmp_path: Path) -> None:
    run = FakeRun()
    run.user = "ada"
    made = _do(_rekey(job, tmp_path, name="seven", reason="fewer groups"), run)
    folder = Path(unquote(made["path"].removeprefix("file://")))
    root_files.check_savepoint(folder)
    document = root_files.unsealed((folder / "_savepoint").read_bytes())[0]
    assert (document["max_parallelism"], document["name"], document["reason"]) == (7, "seven", "fewer groups")
    assert (folder.parent, document["by"]) == (tmp_path, airflow_user("ada")) and _totals(folder) == BEFORE
    assert _do(_rekey(job, tmp_path, name="seven"), run) == made
    assert _do(_rekey(job, tmp_path, savepoint=str(folder), max_parallelism="9", name="nine"))["name"] == "nine"


def test_a_savepoint_of_a_task_has_the_totals_and_retries_return_the_same(job: CliFixture, tmp_path: Path) -> None:
    run, asset = FakeRun(), Asset("savepoint")
    of_first = {"savepoint": str(tmp_path / "first"), "job_root": ""}
    operators = (_write(job, tmp_path, outlets=[asset]), _change(job, tmp_path, outlets=[asset], **of_first))
    for operator, totals in zip(operators, ({"a": 1000, "b": 2000}, {"a": 2000, "b": 4000}), strict=True):
        made = _do(operator, run)
        assert _totals(made["path"]) == totals and run.events[asset].extra == made
        folder = Path(made["path"].removeprefix("file://"))
        complete = root_files.digests(folder)
        assert _do(operator, run) == made and root_files.digests(folder) == complete
        assert savepoint_at(str(folder)).document.by.startswith("airflow")


def test_a_retry_of_a_try_that_has_stored_files_only_leaves_one_complete_savepoint(
    job: CliFixture, tmp_path: Path
) -> None:
    folder, run = tmp_path / "first", FakeRun()
    _do(_write(job, tmp_path), run)
    (folder / "_savepoint").unlink()
    (tmp_path / "more.jsonl").write_text('{"key": "c", "value": 3000}\n')
    _do(_write(job, tmp_path, states=f"sum.total={tmp_path}/more.jsonl"), run)
    assert _totals(folder) == {"c": 3000}
    (operator,) = savepoint_at(str(folder)).document.manifest.operators
    used = {f"{folder}/{file.handle.key}" for subtask in operator.subtasks for file in subtask.files}
    assert {str(path) for path in (folder / "files").iterdir()} == used


def test_an_operator_is_removed_and_the_time_of_a_savepoint_is_an_argument(job: CliFixture, tmp_path: Path) -> None:
    assert _do(_change(job, tmp_path, remove="sum\n", transforms=()))["operators"] == []
    made = _do(_write(job, tmp_path, at="2026-01-31T03:00", max_parallelism="16", parallelism=2, name="x"))
    document = savepoint_at(made["path"]).document
    assert datetime.fromisoformat(document.made_at) == datetime(2026, 1, 31, 3, tzinfo=UTC)
    assert (document.max_parallelism, document.name) == (16, "x")


# -- wrong arguments --------------------------------------------------------------------------------------------------

WRONG: list[tuple[Make, dict[str, Any]]] = [
    *((_diff, wrong) for wrong in ({"max_keys": "many"}, {"max_keys": "-1"}, {"max_fraction": "2"})),
    *((_diff, wrong) for wrong in ({"operators": ["none"]}, {"other_root": "/elsewhere", "locations": ["{out}"]})),
    *((_export, {"into": into}) for into in ("relative.jsonl", "/elsewhere/rows.jsonl", "{out}/")),
    (_export, {"into": "{root}/log/rows.jsonl", "locations": ["{root}"]}),
    *((_export, wrong) for wrong in ({"stored_as": "csv"}, {"state_name": "larger"}, {"operator_uid": "total"})),
    *((_export, wrong) for wrong in ({"snapshot": "99"}, {"job_root": "relative"})),
    *((_rekey, {"max_parallelism": number}) for number in ("many", "0", "")),
    *((_rekey, wrong) for wrong in ({"savepoint": ""}, {"savepoint": "other"}, {"into": "copies"})),
    *((_rekey, {"into": into, "locations": []}) for into in ("{root}/copies", "{out}")),
    *((_write, {"into": into}) for into in ("made/first", "/elsewhere/first")),
    *((_write, {"states": states}) for states in ("sum.total=/etc/passwd", "sum.totel={rows}")),
    (_write, {"sources": "rows=spark:/elsewhere/query"}),
    (_write, {"columns": ["sum.total.value=1"]}),
    *((_write, wrong) for wrong in ({"max_parallelism": "many"}, {"at": "noon"}, {"job": "job.py"})),
    *((_change, wrong) for wrong in ({"into": "/elsewhere/second"}, {"savepoint": "/elsewhere/first"})),
    *((_change, wrong) for wrong in ({"savepoint": "first"}, {"remove": ["some"]}, {"job": ""})),
]


def _filled(value: Any, places: dict[str, str]) -> Any:
    return [_filled(each, places) for each in value] if isinstance(value, list) else value.format(**places)


@pytest.mark.parametrize(("make", "wrong"), WRONG)
def test_a_wrong_argument_is_not_retried_and_leaves_no_file(
    job: CliFixture, tmp_path: Path, make: Make, wrong: dict[str, Any]
) -> None:
    places = {"out": str(tmp_path), "root": job.root, "rows": str(job.folder / "rows")}
    before = root_files.digests(Path(job.root))
    with fails(PermanentFailure, "config"):
        _do(make(job, tmp_path, **{name: _filled(value, places) for name, value in wrong.items()}))
    assert list(tmp_path.iterdir()) == []
    after = root_files.digests(Path(job.root))
    assert [name for name in after.keys() - before.keys() if not name.startswith(f"{job.root}/log/")] == []


def test_a_function_that_fails_is_an_error_of_the_user_and_leaves_no_savepoint(job: CliFixture, tmp_path: Path) -> None:
    function = f"sum.total={job.folder}/code/changes_by_a_dag.py:broken"
    with fails(PermanentFailure, "user-code"):
        _do(_change(job, tmp_path, transforms=[function]))
    assert not (tmp_path / "second" / "_savepoint").exists()


# -- tables -----------------------------------------------------------------------------------------------------------

TABLES = """
from stateflow.connectors import DeltaSink

def build(env):
    totals = env.from_source(source(), uid="rows").key_by("key").process(Sum(), output=Total, uid="sum")
    totals.sink_to(DeltaSink(HERE.parent / "newest", mode="upsert", keys="key"), uid="newest")
    totals.sink_to(DeltaSink(HERE.parent / "all"), uid="all")
"""


def test_tables_are_optimized_and_vacuumed_and_a_preview_changes_nothing(tmp_path: Path) -> None:
    job = CliFixture(tmp_path)
    job.settings["checkpoints.asynchronous"] = "no"
    job.write(TABLES)
    job.run()

    def execute(older_than: str = "0s", **more: Any) -> Any:
        code: dict[str, Any] = {"job": str(job.job), "job_root": job.root, "settings": job.settings}
        returned = _do(StateflowTablesOperator(task_id="tables", older_than=older_than, **code, **more))
        check(MaintenanceReport, returned)
        return returned

    def files() -> int:
        return len(list(tmp_path.glob("*/*.parquet")))

    before = files()
    planned = execute(preview="True")
    counts = [(r["uid"], r["combined_files"], r["new_files"]) for r in planned["optimized"]]
    assert files() == before and counts == [("all", 3, None), ("newest", 0, None)]
    one = execute("30d", tables=["newest"], optimize=False)
    assert (one["optimized"], [r["uid"] for r in one["vacuumed"]]) == ([], ["newest"])
    done = execute()
    assert [(r["combined_files"], r["new_files"]) for r in done["optimized"]] == [(3, 1), (0, 0)]
    holders = {r["uid"]: [h for held in r["held"] for h in held["holders"]] for r in done["vacuumed"]}
    assert holders["newest"] == holders["all"] != []
    assert files() == before + 1 - sum(r["deleted_files"] for r in done["vacuumed"])
    with fails(PermanentFailure, "config", older_than="soon"):
        execute("soon")
    job.job.unlink()
    with fails(PermanentFailure, "config", job=str(job.job)):
        execute()
    store_cache.close_all()
