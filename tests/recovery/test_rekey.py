"""Another max parallelism: of a copy of a savepoint, and of a savepoint that is imported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from stateflow.private_files import PREFIX
from tests.recovery.new_roots import NewRoot
from tests.support import root_files, stored_state
from tests.support.job_fixture import KILLED, AccountsJob
from tests.support.restores import check_after, execute, go_back, plan, plan_file

GROUPS = [1, 1000]
"""Key groups; the accounts have 128. `test_moved_state.py` has more, with state of every kind."""


@pytest.fixture
def roots(job: AccountsJob, tmp_path: Path) -> NewRoot:
    return NewRoot(job, tmp_path)


def _document(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = root_files.unsealed((folder / "_savepoint").read_bytes())[0]
    return document


def _groups(root: Path, manifest: dict[str, Any]) -> set[int]:
    entries = [e for o in manifest["operators"] for s in o["subtasks"] for e in stored_state.stored_entries(root, s)]
    return {int.from_bytes(key[:2], "big") for key, _ in entries}


def _rekey(roots: NewRoot, groups: int, failpoint: str = "") -> Any:
    command = ("savepoint", "rekey", str(roots.savepoint), "--max-parallelism", groups, "--into", roots.tables.parent)
    return roots.old.begin(*map(str, (*command, "--name", "copy", "--json")), failpoint=failpoint).wait()


def _copy(roots: NewRoot, groups: int) -> Path:
    return Path(unquote(_rekey(roots, groups).check().document["path"].removeprefix("file://")))


@pytest.mark.parametrize("groups", GROUPS)
def test_a_new_root_has_another_max_parallelism(roots: NewRoot, groups: int) -> None:
    settings = ("--set", f"max_parallelism={groups}", "--set", f"parallelism={min(3, groups)}")
    roots.run_to(120, *settings)
    assert root_files.unsealed((roots.new.root / "FORMAT").read_bytes())[0]["max_parallelism"] == groups
    assert max(_groups(roots.new.root, roots.new.manifest)) < groups


@pytest.mark.parametrize("groups", GROUPS)
def test_a_copy_of_a_savepoint_has_another_max_parallelism(roots: NewRoot, groups: int) -> None:
    copy = _copy(roots, groups)
    document = _document(copy)
    assert (document["max_parallelism"], document["format"]) == (groups, "canonical")
    root_files.check_savepoint(copy)
    assert max(_groups(copy, document["manifest"])) < groups
    roots.savepoint = copy
    roots.run_to(120, "--set", f"max_parallelism={groups}", "--set", f"parallelism={min(3, groups)}")
    assert root_files.unsealed((roots.new.root / "FORMAT").read_bytes())[0]["max_parallelism"] == groups


@pytest.mark.parametrize("groups", [5, 300])
def test_a_root_is_restored_to_a_copy_with_another_max_parallelism(roots: NewRoot, groups: int) -> None:
    copy = _copy(roots, groups)
    roots.old.run_to(90)
    planned = plan(roots.old, str(copy))
    assert (planned["graph"]["old_max_parallelism"], planned["graph"]["max_parallelism"]) == (groups, 128)
    hidden = {**planned, "graph": {**planned["graph"], "old_max_parallelism": 0, "max_parallelism": 0}}
    plan_file(roots.old).write_text(json.dumps(hidden))
    execute(roots.old).check_error(4, "plan-outdated")
    go_back(roots.old, str(copy))
    check_after(roots.old)


@pytest.mark.parametrize("step", ["share", "rekeyed"])
def test_a_killed_copy_is_completed_by_the_same_command(roots: NewRoot, step: str, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    roots.old.variables = {"TMPDIR": str(temporary)}
    assert _rekey(roots, 7, f"savepoint.{step}").code == KILLED
    assert bool(list(temporary.glob(f"{PREFIX}*"))) == (step == "share")
    assert not list(roots.tables.parent.glob("copy-*/_savepoint"))
    copy = _copy(roots, 7)
    assert list(temporary.glob(f"{PREFIX}*")) == []
    assert copy == _copy(roots, 7)
    assert list(roots.tables.parent.glob("copy-*")) == [copy]
    root_files.check_savepoint(copy)
    assert {f.name for f in (copy / "files").iterdir()} == _stored(_document(copy)["manifest"])


def _stored(manifest: dict[str, Any]) -> set[str]:
    keyed = [f["handle"] for o in manifest["operators"] for s in o["subtasks"] for f in s["files"]]
    others = [p["handle"] for o in manifest["operators"] for p in o["parts"] if p["handle"]]
    return {handle["sha256"] for handle in keyed + others}


@pytest.mark.parametrize("groups", ["0", "32769", "many"])
def test_a_number_of_key_groups_out_of_range_is_refused(roots: NewRoot, groups: str) -> None:
    command = ("savepoint", "rekey", str(roots.savepoint), "--max-parallelism", groups, "--into", str(roots.tables))
    assert roots.old.command(*command).code == 2
    assert not roots.tables.exists()
