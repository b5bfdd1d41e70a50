"""Checkpoints that an attacker made up, with hashes that are right: nothing is executed, memory stays bounded, nothing
outside the job root is touched, and each leads to an error of its kind."""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stateflow import operations
from stateflow.checkpoint.job_requests import KEEP, find_damaged_requests, open_requests, trim_requests
from stateflow.checkpoint.log.documents import Origin
from stateflow.checkpoint.savepoints.catalog import find_savepoint, list_savepoints, savepoint_at
from stateflow.checkpoint.savepoints.cleanup import SavepointRule
from stateflow.clock import ManualClock
from stateflow.errors import ConfigError, CorruptFile, DataError, StateflowError
from stateflow.operations import (
    JobCode,
    SavepointRequest,
    collect_garbage,
    create_savepoint,
    dispose_path,
    list_all,
    plan_restore,
    prune_savepoints,
    verify_savepoint,
)
from stateflow.operations.compatibility import check_job
from stateflow.operations.doctor import Health, examine_storage
from stateflow.runtime.restore.planner import RestoreOptions
from stateflow.storage import PosixStorage
from stateflow.types.key_encoding import decode_key
from stateflow.types.serializers import ValueSerializer, decode_untyped, timestamp_of
from tests.recovery.forged_savepoints import ForgedSavepoint, attack_table
from tests.support import root_files
from tests.support.cli_fixture import BUILD, JOB, CliFixture, contents
from tests.support.errors import raises
from tests.support.memory import MemoryPeak
from tests.support.table_files import restart_outside

EXECUTES = ("pickle.find_class", "os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "ctypes.dlopen")
LARGEST = 150 << 20
"""Bytes that a whole run may take beyond the process: what it imports, and each document, of up to 100 MB, once."""
_heard: list[str] | None = None


def _on_event(event: str, args: tuple[object, ...]) -> None:
    if _heard is not None and event.startswith(EXECUTES):
        _heard.append(event)


sys.addaudithook(_on_event)


@contextmanager
def harmless() -> Iterator[None]:
    """Fails when anything is executed, or much memory is taken."""
    global _heard
    _heard = []
    peak = MemoryPeak()
    try:
        yield
        assert _heard == []
        assert peak.bytes() < LARGEST
    finally:
        _heard = None


Change = Callable[[dict[str, Any]], object]
BOMB = "[" * 200_000


def _operator(doc: dict[str, Any]) -> Any:
    return doc["operators"][0]


def _handle(doc: dict[str, Any]) -> Any:
    return _operator(doc)["subtasks"][0]["files"][0]["handle"]


def _type(doc: dict[str, Any]) -> Any:
    return _operator(doc)["states"][0]["type"]


def _nested(depth: int) -> dict[str, Any]:
    node: dict[str, Any] = {"kind": "int"}
    for _ in range(depth):
        node = {"kind": "list", "parts": [node]}
    return node


MANIFESTS: dict[str, Change] = {
    "operators are a text": lambda d: d.update(operators="x"),
    "a size is a text": lambda d: _handle(d).update(size="1"),
    "a size is huge": lambda d: _handle(d).update(size=1 << 62),
    "a size is negative": lambda d: _handle(d).update(size=-1),
    "a number beyond 64 bits": lambda d: d.update(epoch=1 << 80),
    "another job": lambda d: d.update(job_uuid="0" * 32),
    "a key outside": lambda d: _handle(d).update(key="../../outside"),
    "an absolute key": lambda d: _handle(d).update(key="/etc/passwd"),
    "a key with a zero": lambda d: _handle(d).update(key="data/\0x"),
    # The file is taken for one that a host has already.
    "a hash that is a path": lambda d: _handle(d).update(sha256="../../../../etc/passwd"),
    "a class that is not there": lambda d: _type(d).update(root={"kind": "class", "class_index": 1 << 40}),
    "a class before the first": lambda d: _type(d).update(root={"kind": "class", "class_index": -7}),
    "an unknown kind": lambda d: _type(d).update(root={"kind": "os.system"}),
    "a type without its parts": lambda d: _type(d).update(root={"kind": "vartuple"}),
    "a deep type": lambda d: _type(d).update(root=_nested(300)),
    "a class that is itself": lambda d: _type(d).update(
        root={"kind": "class", "class_index": 0},
        classes=[{"name": "C", "fields": [{"name": "a", "type": {"kind": "class", "class_index": 0}}]}],
    ),
    "a serializer by name": lambda d: _type(d).update(serializer="os.system", serializer_version=1),
    "many earlier types": lambda d: _operator(d)["states"][0].update(
        earlier=[{"root": {"kind": f"k{n}"}} for n in range(5_000)]
    ),
    "key groups from below zero": lambda d: _operator(d)["subtasks"][0].update(first_group=-5),
    "key groups to the end of the world": lambda d: _operator(d)["subtasks"][0].update(last_group=1 << 60),
    "key groups twice": lambda d: _operator(d)["subtasks"].append(_operator(d)["subtasks"][0]),
    "a timer before the first time": lambda d: _operator(d)["subtasks"][0].update(event_timer=-1 << 70),
    "a parallelism that would fill memory": lambda d: _operator(d).update(parallelism=10**9),
    "an operator of another name": lambda d: _operator(d).update(uid="../x"),
}


def _sealed(line: bytes) -> bytes:
    return line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n"


def _replace(path: Path, data: bytes) -> None:
    path.unlink()  # it may be read-only
    path.write_bytes(data)


def _forge(root: Path, line: Callable[[bytes], bytes]) -> None:
    """Writes another manifest for the newest checkpoint, with hashes all along that are right."""
    manifest = root_files.head(root).doc["manifest"]
    path = root / manifest["key"]
    _replace(path, _sealed(line(path.read_bytes().split(b"\n")[0])))
    known: dict[int, tuple[str, Any]] = {}
    for entry in root_files.entries(root):
        doc = dict(entry.doc)
        if doc["manifest"] == manifest:
            doc["manifest"] = root_files.handle_of(root, path)
        for ref in filter(None, [doc["checkpoint"], *doc["retained"]]):
            if ref["id"] in known:
                ref["sha256"], ref["manifest"] = known[ref["id"]]
        if entry.seq - 1 in known:
            doc["parent"] = known[entry.seq - 1][0]
        data = root_files.sealed(doc)
        _replace(root_files.entry_path(root, entry.seq), data)
        known[entry.seq] = root_files.unsealed(data)[1], doc["manifest"]


def _changed(change: Change, data: bytes) -> bytes:
    document = json.loads(data)
    change(document)
    return json.dumps(document).encode()


def _refused(ran: CliFixture) -> StateflowError:
    """Runs, and checks against it; the run is refused, and nothing has changed."""
    before, outside = contents(Path(ran.root)), sorted(ran.folder.parent.iterdir())
    with harmless():
        with pytest.raises((DataError, ConfigError)) as run:
            ran.run()
        with suppress(DataError, ConfigError):
            check_job(ran.job, ran.root, (dict(ran.settings),))
    assert contents(Path(ran.root)) == before
    assert sorted(ran.folder.parent.iterdir()) == outside
    return run.value


def test_a_forged_manifest_that_changes_nothing_is_taken(ran: CliFixture) -> None:
    """What is refused below is refused for its content."""
    _forge(Path(ran.root), lambda line: line)
    ran.run()


@pytest.mark.long(reason="each command reads the job root")
@pytest.mark.parametrize("name", MANIFESTS)
def test_a_made_up_manifest_is_refused(ran: CliFixture, name: str) -> None:
    _forge(Path(ran.root), partial(_changed, MANIFESTS[name]))
    _refused(ran)


@pytest.mark.parametrize("content", ["/w==", "gaVsaXN0c4GhYZHEAP8=", "gaVsaXN0c4GhYZHEAv8B"])
def test_a_savepoint_with_operator_state_that_cannot_be_read_is_not_verified(ran: CliFixture, content: str) -> None:
    made = create_savepoint(ran.root, SavepointRequest("s", from_head=True))
    (path,) = Path(ran.root).glob("savepoints/*/_savepoint")
    document, _ = root_files.unsealed(path.read_bytes())
    _operator(document["manifest"]).update(parts=[{"subtask": 0, "content": content}])
    _replace(path, root_files.sealed(document))
    with pytest.raises(CorruptFile):
        verify_savepoint(savepoint_at(made.path))


DEEP_TYPE = '{"kind":"list","parts":[' * 100_000
TEXTS = {
    "brackets": BOMB,
    "brackets for a type": '{"operators":[{"states":[{"type":' + BOMB,
    "a deep type": '{"operators":[{"states":[{"name":"s","kind":"value","value_type":"","type":{"root":' + DEEP_TYPE,
}


@pytest.mark.long(reason="each command reads the job root")
@pytest.mark.parametrize("name", TEXTS)
def test_a_text_that_is_nested_deeply_is_a_corrupt_file(ran: CliFixture, name: str) -> None:
    _forge(Path(ran.root), lambda _: TEXTS[name].encode())
    assert type(_refused(ran)) is CorruptFile


ENTRIES: dict[str, Change] = {
    "a manifest outside": lambda d: d["manifest"].update(key="../../../etc/passwd"),
    "an absolute manifest": lambda d: d["manifest"].update(key="/etc/passwd"),
    "a manifest that is huge": lambda d: d["manifest"].update(size=1 << 61),
    "a kind that there is not": lambda d: d.update(kind="exec"),
    "a number of another entry": lambda d: d.update(seq=1),
    "retained is a number": lambda d: d.update(retained=7),
    "pending of a sink that is a path": lambda d: d.update(
        pending=[{"checkpoint_id": 1, "sink": "../x", "committables": []}]
    ),
    "a bomb": lambda d: d.update(later=None),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_a_made_up_log_entry_is_refused(ran: CliFixture, name: str) -> None:
    path = root_files.entry_path(Path(ran.root), root_files.newest_seq(Path(ran.root)))
    line = _changed(ENTRIES[name], path.read_bytes().split(b"\n")[0])
    _replace(path, _sealed(line.replace(b'"later": null', f'"later": {BOMB}'.encode())))
    _refused(ran)


_OF_BOTH = ("a key outside", "a size is huge", "a class that is itself", "many earlier types", "key groups twice")
# Some of those above, and what a run would meet at its first row only.
SAVEPOINTS: dict[str, Change] = {
    **{name: MANIFESTS[name] for name in _OF_BOTH},
    "a store without its files": lambda d: _operator(d)["subtasks"][0].update(files=[]),
    "files of other names": lambda d: _operator(d)["subtasks"][0]["files"][0].update(local_name="../x"),
    "a manifest of a store that is none": lambda d: _operator(d)["subtasks"][0].update(store_manifest="AAAA"),
    "files of another backend": lambda d: _operator(d)["subtasks"][0].update(backend="filesystem"),
    "operator state that cannot be read": lambda d: _operator(d).update(parts=[{"subtask": 0, "content": "/w=="}]),
}


@pytest.mark.parametrize("name", [*SAVEPOINTS, "a bomb"])
def test_a_made_up_savepoint_is_refused(ran: CliFixture, name: str) -> None:
    create_savepoint(ran.root, SavepointRequest(name="sp", from_head=True))
    (path,) = Path(ran.root).glob("savepoints/*/_savepoint")
    document = root_files.unsealed(path.read_bytes())[0]
    line = f'{{"x":{BOMB}'.encode()
    if name != "a bomb":
        SAVEPOINTS[name](document["manifest"])
        line = json.dumps(document).encode()
    _replace(path, _sealed(line))
    before = contents(Path(ran.root))
    code = JobCode(ran.job, (dict(ran.settings),))
    with harmless(), pytest.raises((DataError, ConfigError)) as refused:
        plan_restore(ran.root, code, str(path.parent), RestoreOptions())
    assert refused.value.code != "internal"
    assert contents(Path(ran.root)) == before


# -- values ------------------------------------------------------------------------------------------------------------


class Tree(msgspec.Struct):
    children: list[Tree] = []


class Wide(msgspec.Struct, array_like=True):
    a: tuple[int, ...]
    b: dict[int, int] = {}


TYPES: list[Any] = [Any, int, str, bytes, list, list[Any], tuple[int, ...], set[int], dict, dict[str, int], Tree, Wide]
EXT = b"\xc7\x08\x01cos\nsyst"
VALUES: dict[str, bytes] = {
    "nothing": b"", "nested arrays": b"\x91" * 50_000, "nested maps": b"\x81\xa1a" * 30_000,
    "nested children": b"\x81\xa8children\x91" * 10_000, "an array of four billion": b"\xdd\xff\xff\xff\xff",
    "arrays of four billion in arrays": b"\xdd\xff\xff\xff\xff" * 500,
    "arrays of 65535 in arrays": b"\xdc\xff\xff" * 900, "a map of four billion": b"\xdf\xff\xff\xff\xff",
    "a text of four gigabytes": b"\xdb\xff\xff\xff\xff", "bytes of four gigabytes": b"\xc6\xff\xff\xff\xff",
    "an ext type of four gigabytes": b"\xc9\xff\xff\xff\xff\x01", "an ext type with a pickle": EXT,
    "an ext type inside": b"\x91" + EXT, "a time stamp of another size": b"\xc7\x02\xff\x00\x00",
    "a reserved byte": b"\xc1", "text that is none": b"\xa2\xff\xfe", "more after it": b"\x01\x01",
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_a_made_up_value_is_a_corrupt_file_or_plain_data(name: str) -> None:
    with harmless():
        for head in (b"\x01", b"\x02" + bytes(8)):
            for kind in TYPES:
                _opened(ValueSerializer[Any](kind).decode, head + VALUES[name])
            _opened(decode_untyped, head + VALUES[name])
            _opened(lambda data: timestamp_of(data, "processing"), head + VALUES[name])
        _opened(decode_key, VALUES[name])

    if "with a pickle" not in name and name != "an ext type inside":
        # Only whole values of known forms are read.
        with pytest.raises(CorruptFile):
            decode_untyped(b"\x01" + VALUES[name])


PLAIN = (int, float, str, bytes, list, tuple, set, dict, type(None), msgspec.msgpack.Ext, msgspec.Struct)


def _opened(decode: Callable[[bytes], Any], data: bytes) -> None:
    try:
        value = decode(data)
    except CorruptFile as e:
        assert e.facts
    else:
        assert isinstance(value, PLAIN)


# -- requests that another user has put into a job root ---------------------------------------------------------------

STOP = {"id": "aaa", "kind": "stop", "savepoint": "", "origin": "manual", "by": "x", "at": "2026-01-01T00:00:00+00:00"}
ANSWER = {"id": "aaa", "status": "done", "at": "2026-01-01T00:00:00+00:00"}


def _plant(root: str, name: str, document: dict[str, object]) -> None:
    path = Path(root) / "requests" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(root_files.sealed(document))


def _run_with_more_rows(cli: CliFixture) -> int:
    """Runs the job with 12 more rows; returns how many rows its table has."""
    cli.write(BUILD, JOB.replace("range(12)", "range(24)"))
    cli.run()
    return root_files.head(Path(cli.root)).position


@pytest.mark.parametrize(
    "changes",
    [
        {"until": "x"}, {"until": "2030-01-01T00:00:00"}, {"at": "x"}, {"id": "bbb"}, {"id": "aaa.done"},
        {"id": "../aaa"}, {"kind": "x"},
    ],
    ids=lambda changes: "-".join(f"{name}={value}" for name, value in changes.items()),
)  # fmt: skip
def test_a_forged_stop_stops_no_run(ran: CliFixture, changes: dict[str, object]) -> None:
    _plant(ran.root, "aaa", {**STOP, **changes})
    assert _run_with_more_rows(ran) == 24
    storage = PosixStorage(ran.root)
    assert (open_requests(storage), find_damaged_requests(storage)) == ([], ["requests/aaa"])
    (found,) = [f for f in examine_storage(storage, ManualClock(1)) if f.check == "requests"]
    assert found.health is Health.WARNING and "requests/aaa" in found.found and found.hint


def test_a_damaged_request_does_not_hide_another_one(ran: CliFixture) -> None:
    _plant(ran.root, "aaa", {**STOP, "until": "x"})
    _plant(ran.root, "bbb", {**STOP, "id": "bbb"})
    assert [r.id for r in open_requests(PosixStorage(ran.root))] == ["bbb"]
    assert _run_with_more_rows(ran) == 12
    assert _run_with_more_rows(ran) == 24


def test_a_forged_answer_deletes_no_other_request(ran: CliFixture) -> None:
    """Old answers are deleted together with their requests: by the id of the file."""
    for number in range(KEEP * 2):
        _plant(ran.root, f"r{number}.done", {**ANSWER, "id": f"r{number}"})
    _plant(ran.root, "open", {**STOP, "id": "open"})
    _plant(ran.root, "forged.done", {**ANSWER, "id": "open", "at": "0001-01-01T00:00:00+00:00"})
    storage = PosixStorage(ran.root)
    trim_requests(storage)
    assert [r.id for r in open_requests(storage)] == ["open"]
    assert len(storage.list("requests/r")) == KEEP


# -- savepoints that another program has written ----------------------------------------------------------------------


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


def _break(root: str, folder: str, **changes: object) -> Path:
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
    return _break(root, f"p{number}-0000000{number}", **fields)


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
    planted = _break(ran.root, "whole", id="f" * 32)
    for find in (lambda: operations.find(ran.root, "whole"), lambda: operations.dispose(ran.root, "whole")):
        with raises(ConfigError, name="whole", paths=[planted.as_uri(), genuine.as_uri()]):
            find()
    assert operations.find(ran.root, genuine.name).uri == genuine.as_uri()
    dispose_path(str(planted))
    assert not planted.exists() and operations.find(ran.root, "whole").uri == genuine.as_uri()


def test_a_savepoint_with_the_name_of_another_s_folder_does_not_stop_its_deletion(ran: CliFixture) -> None:
    genuine = _whole(ran.root)
    planted = _break(ran.root, f"{genuine.name}-00000000", name=genuine.name, id="f" * 32)
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
