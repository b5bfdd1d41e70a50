"""Savepoints with random changes and right hashes, and forged ones: commands find, keep and delete the genuine ones."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from stateflow import operations
from stateflow.checkpoint.log.documents import Origin
from stateflow.checkpoint.savepoints.catalog import find_savepoint, list_savepoints, savepoint_at
from stateflow.checkpoint.savepoints.cleanup import SavepointRule
from stateflow.errors import ConfigError, CorruptFile
from stateflow.operations import (
    SavepointRequest,
    collect_garbage,
    create_savepoint,
    dispose_path,
    list_all,
    prune_savepoints,
    verify_savepoint,
)
from stateflow.storage import PosixStorage
from tests.recovery.forged_savepoints import ForgedSavepoint, attack_table
from tests.support import root_files
from tests.support.cli_fixture import CliFixture
from tests.support.errors import raises
from tests.support.table_files import restart_outside


@pytest.fixture
def saved(ran: CliFixture) -> tuple[PosixStorage, Path]:
    """A storage with two savepoints, and the document of the second."""
    for name in ("whole", "broken"):
        create_savepoint(ran.root, SavepointRequest(name, from_head=True))
    (document,) = Path(ran.root).glob("savepoints/broken-*/_savepoint")
    return PosixStorage(ran.root), document


def test_the_verification_of_a_savepoint_opens_its_stores(saved: tuple[PosixStorage, Path], tmp_path: Path) -> None:
    forged = ForgedSavepoint(saved[1].parent, tmp_path, random.Random(1))
    attack_table(forged, restart_outside)
    stored = savepoint_at(str(forged.folder))
    stored.verify()
    with raises(CorruptFile, file=f"{stored.folder}{forged.subtask['files'][0]['handle']['key']}"):
        verify_savepoint(stored)


def _too_large(path: Path) -> None:
    os.truncate(path, 200 << 20)


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _linked_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))
    path.parent.symlink_to(path.parent.with_name("elsewhere"))


@pytest.mark.parametrize("damage", [_too_large, _fifo, _link, _linked_folder])
def test_one_broken_savepoint_does_not_hide_the_others(
    saved: tuple[PosixStorage, Path], damage: Callable[[Path], None]
) -> None:
    storage, path = saved
    damage(path)
    assert [s.document.name for s in list_savepoints(storage) if s.folder_name != "elsewhere"] == ["whole"]
    assert find_savepoint(storage, "whole") is not None


# -- savepoints that another user has added ---------------------------------------------------------------------------


def _plant(root: str, folder: str, **changes: object) -> Path:
    """Adds a copy of the savepoint "whole" with other fields and a right hash; returns its folder."""
    (genuine,) = Path(root).glob("savepoints/whole-*")
    document, _ = root_files.unsealed((genuine / "_savepoint").read_bytes())
    planted = genuine.with_name(folder)
    planted.mkdir()
    (planted / "_savepoint").write_bytes(root_files.sealed({**document, **changes}))
    return planted


def _whole(root: str, origin: Origin = Origin.MANUAL) -> Path:
    """Creates the savepoint "whole" and returns its folder."""
    create_savepoint(root, SavepointRequest("whole", from_head=True, origin=origin))
    (folder,) = Path(root).glob("savepoints/whole-*")
    return folder


def _plant_periodic(root: str, number: int, **changes: object) -> Path:
    at = f"200{number}-01-01T00:00:00+00:00"
    fields = {"name": f"p{number}", "origin": "periodic", "made_at": at, "id": f"{number}" * 32, **changes}
    return _plant(root, f"p{number}-0000000{number}", **fields)


def test_retention_deletes_no_manual_savepoint_whose_id_a_periodic_one_has(ran: CliFixture) -> None:
    genuine = _whole(ran.root)
    made = root_files.unsealed((genuine / "_savepoint").read_bytes())[0]["id"]
    planted = [_plant_periodic(ran.root, 0, id=made), *(_plant_periodic(ran.root, n) for n in range(1, 4))]
    report = prune_savepoints(ran.root, SavepointRule(keep=2))
    assert (report.deleted, report.kept) == (("p1",), ("p2", "p3"))
    assert set(report.uncounted) == {genuine.as_uri(), planted[0].as_uri()}
    assert [folder.exists() for folder in (genuine, *planted)] == [True, True, False, True, True]


def test_savepoints_from_the_future_make_no_other_expire(ran: CliFixture) -> None:
    genuine = _whole(ran.root, Origin.PERIODIC)
    for number in range(3):
        _plant_periodic(ran.root, number, made_at="9999-12-31T23:59:59.999999-23:59")
    report = prune_savepoints(ran.root, SavepointRule(keep=1))
    assert (report.deleted, report.kept, len(report.uncounted)) == ((), ("whole",), 3)
    assert genuine.exists()


@pytest.mark.parametrize(
    "changes",
    [{"made_at": "x"}, {"committed_at": "x"}, {"made_at": ""}, {"name": "a\nb"}, {"name": "17"}, {"name": "latest"}],
    ids=["made_at", "committed_at", "no-time", "line-feed", "number", "latest"],
)
def test_a_savepoint_with_a_value_that_none_is_created_with_is_damaged(
    ran: CliFixture, changes: dict[str, object]
) -> None:
    _whole(ran.root)
    planted = _plant_periodic(ran.root, 0, **changes)
    with raises(CorruptFile, field=next(iter(changes))):
        savepoint_at(str(planted))
    assert [s.name for s in list_all(ran.root)] == ["whole"]
    assert prune_savepoints(ran.root, SavepointRule(keep=1)).kept == ("whole",)
    dispose_path(str(planted))
    assert not planted.exists()


def test_a_folder_with_the_name_of_a_savepoint_does_not_replace_the_savepoint(ran: CliFixture) -> None:
    genuine = _whole(ran.root)
    planted = _plant(ran.root, "whole", id="f" * 32)
    for find in (lambda: operations.find(ran.root, "whole"), lambda: operations.dispose(ran.root, "whole")):
        with raises(ConfigError, name="whole", paths=[planted.as_uri(), genuine.as_uri()]):
            find()
    assert operations.find(ran.root, genuine.name).uri == genuine.as_uri()
    dispose_path(str(planted))
    assert not planted.exists() and operations.find(ran.root, "whole").uri == genuine.as_uri()


def test_a_savepoint_with_the_name_of_another_s_folder_does_not_stop_its_deletion(ran: CliFixture) -> None:
    genuine = _whole(ran.root)
    planted = _plant(ran.root, f"{genuine.name}-00000000", name=genuine.name, id="f" * 32)
    dispose_path(str(genuine))
    assert planted.exists() and not genuine.exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"damaged", b"f" * 32, b"f" * 1000, b"\xff" * 32],
    ids=["empty", "damaged", "another-id", "long", "no-text"],
)
def test_a_deletion_that_was_not_begun_is_not_completed(ran: CliFixture, content: bytes) -> None:
    genuine = _whole(ran.root)
    (genuine / "_disposed").write_bytes(content)
    before = root_files.digests(genuine)
    collect_garbage(ran.root)
    assert root_files.digests(genuine) == before
    (genuine / "_disposed").write_text(root_files.unsealed((genuine / "_savepoint").read_bytes())[0]["id"])
    collect_garbage(ran.root)
    assert not genuine.exists()
