"""Checkpoints that an attacker made up, with hashes that are right: nothing is executed, memory stays bounded, nothing
outside the job root is touched, and each leads to an error of its kind."""

from __future__ import annotations

import hashlib
import json
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stateflow.errors import ConfigError, CorruptFile, DataError, StateflowError
from stateflow.operations import JobCode, SavepointRequest, create_savepoint, plan_restore
from stateflow.operations.compatibility import check_job
from stateflow.runtime.restore.planner import RestoreOptions
from stateflow.runtime.task import store_cache
from stateflow.types.serializers import ValueSerializer, decode_key, decode_untyped, timestamp_of
from tests.support import root_files
from tests.support.cli_fixture import CliFixture, contents

EXECUTES = ("pickle.find_class", "os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "ctypes.dlopen")
MEMORY_MB = 300
"""What opening anything may take at its highest, beside what the process had."""
_heard: list[str] | None = None


def _on_finished(event: str, args: tuple[object, ...]) -> None:
    if _heard is not None and event.startswith(EXECUTES):
        _heard.append(event)


sys.addaudithook(_on_finished)


@contextmanager
def harmless() -> Iterator[None]:
    """Fails when anything is executed, or much memory is taken."""
    global _heard
    _heard = []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        yield
        assert _heard == []
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEMORY_MB << 10
    finally:
        _heard = None


@pytest.fixture(scope="module")
def rested(tmp_path_factory: pytest.TempPathFactory) -> CliFixture:
    bench = CliFixture(tmp_path_factory.mktemp("malicious"))
    bench.run()
    create_savepoint(bench.root, SavepointRequest(name="sp", from_head=True))
    return bench


@pytest.fixture
def bench(rested: CliFixture) -> Iterator[CliFixture]:
    saved = {p: p.read_bytes() for p in rested.folder.rglob("*") if p.is_file()}
    yield rested
    store_cache.close_all()
    for path in [p for p in rested.folder.rglob("*") if p.is_file() and p not in saved]:
        path.unlink()
    for path, data in saved.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_bytes() != data:
            path.unlink(missing_ok=True)
            path.write_bytes(data)


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


def _alias(doc: dict[str, Any]) -> None:
    """Another hash: the file is taken for one that a host has already."""
    _handle(doc)["sha256"] = "../../../../etc/passwd"


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
    "a hash that is a path": _alias,
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
        earlier=[{"root": {"kind": f"k{n}"}} for n in range(50_000)]
    ),
    "key groups from below zero": lambda d: _operator(d)["subtasks"][0].update(first_group=-5),
    "key groups to the end of the world": lambda d: _operator(d)["subtasks"][0].update(last_group=1 << 60),
    "key groups twice": lambda d: _operator(d)["subtasks"].append(_operator(d)["subtasks"][0]),
    "an operator of another name": lambda d: _operator(d).update(uid="../x"),
}


def _forge(root: Path, line: Callable[[bytes], bytes]) -> None:
    """Writes another manifest for the newest checkpoint, with hashes all along that are right."""
    newest = root_files.head(root)
    path = root / newest.doc["manifest"]["key"]
    made = line(path.read_bytes().split(b"\n")[0])
    _replace(path, made + b"\n" + hashlib.sha256(made).hexdigest().encode() + b"\n")
    for entry in reversed(root_files.entries(root)):
        if entry.doc["manifest"] == newest.doc["manifest"]:
            _reseal(root, entry, {"manifest": root_files.handle_of(root, path)})
    _chain(root)


def _chain(root: Path) -> None:
    """Mends what the entries hold of each other."""
    known: dict[int, str] = {}
    manifests: dict[int, Any] = {}
    for entry in root_files.entries(root):
        doc = entry.doc
        refs = [r for r in [doc["checkpoint"], *doc["retained"]] if r and r["id"] in known]
        for ref in refs:
            ref["sha256"], ref["manifest"] = known[ref["id"]], manifests[ref["id"]]
        data = root_files.sealed({**doc, "parent": known.get(entry.seq - 1, doc["parent"])})
        _replace(root_files.entry_path(root, entry.seq), data)
        known[entry.seq], manifests[entry.seq] = root_files.unsealed(data)[1], doc["manifest"]


def _reseal(root: Path, entry: root_files.Entry, changes: dict[str, Any]) -> None:
    _replace(root_files.entry_path(root, entry.seq), root_files.sealed({**entry.doc, **changes}))


def _replace(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)


def _changed(change: Change) -> Callable[[bytes], bytes]:
    def line(data: bytes) -> bytes:
        document = json.loads(data)
        change(document)
        return json.dumps(document).encode()

    return line


def _refused(bench: CliFixture) -> StateflowError:
    """Runs, plans and checks against it; all are refused, and nothing has changed."""
    before, outside = contents(Path(bench.root)), sorted(bench.folder.parent.iterdir())
    with harmless():
        with pytest.raises((DataError, ConfigError)) as run:
            bench.run()
        with pytest.raises((DataError, ConfigError)):
            report = check_job(bench.job, bench.root, (dict(bench.settings),))
            if report.fit == "incompatible":
                raise ConfigError("incompatible")
            # Files are not read by a check.
            bench.run()
    assert contents(Path(bench.root)) == before
    assert sorted(bench.folder.parent.iterdir()) == outside
    assert str(run.value)
    return run.value


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_made_up_manifest_is_refused(bench: CliFixture, name: str) -> None:
    _forge(Path(bench.root), _changed(MANIFESTS[name]))
    _refused(bench)


@pytest.mark.parametrize("at", ["", '{"later":', '{"operators":', '{"operators":[{"states":[{"type":'])
def test_a_bomb_of_brackets_is_a_corrupt_file(bench: CliFixture, at: str) -> None:
    _forge(Path(bench.root), lambda data: (at + BOMB).encode())
    assert type(_refused(bench)) is CorruptFile


def test_a_deep_type_is_a_corrupt_file(bench: CliFixture) -> None:
    deep = '{"kind":"list","parts":[' * 100_000
    _forge(
        Path(bench.root),
        lambda data: (
            b'{"operators":[{"states":[{"name":"s","kind":"value","value_type":"","type":{"root":' + deep.encode()
        ),
    )
    assert type(_refused(bench)) is CorruptFile


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
def test_a_made_up_log_entry_is_refused(bench: CliFixture, name: str) -> None:
    root = Path(bench.root)
    document = dict(root_files.head(root).doc)
    ENTRIES[name](document)
    line = json.dumps(document).replace('"later": null', f'"later": {BOMB}').encode()
    path = root_files.entry_path(root, root_files.newest_seq(root))
    _replace(path, line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n")
    _refused(bench)


SAVEPOINTS = [
    "operators are a text",
    "a size is huge",
    "a key outside",
    "an absolute key",
    "a class that is not there",
    "a serializer by name",
    "key groups to the end of the world",
    "an operator of another name",
]


@pytest.mark.parametrize("name", [*SAVEPOINTS, "a bomb"])
def test_a_made_up_savepoint_is_refused(bench: CliFixture, name: str) -> None:
    (path,) = Path(bench.root).glob("savepoints/*/_savepoint")
    document = root_files.unsealed(path.read_bytes())[0]
    line = f'{{"x":{BOMB}'.encode()
    if name != "a bomb":
        MANIFESTS[name](document["manifest"])
        line = json.dumps(document).encode()
    _replace(path, line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n")
    before = contents(Path(bench.root))
    code = JobCode(bench.job, (dict(bench.settings),))
    with harmless(), pytest.raises((DataError, ConfigError)) as refused:
        plan_restore(bench.root, code, str(path.parent), RestoreOptions())
    assert refused.value.code != "internal"
    assert contents(Path(bench.root)) == before


# -- values ------------------------------------------------------------------------------------------------------------


class Tree(msgspec.Struct):
    children: list[Tree] = []


class Wide(msgspec.Struct, array_like=True):
    a: tuple[int, ...]
    b: dict[int, int] = {}


TYPES: list[Any] = [Any, int, str, bytes, list, list[Any], tuple[int, ...], set[int], dict, dict[str, int], Tree, Wide]
EXT = b"\xc7\x08\x01cos\nsyst"
VALUES: dict[str, bytes] = {
    "nothing": b"",
    "nested arrays": b"\x91" * 500_000,
    "nested maps": b"\x81\xa1a" * 300_000,
    "nested children": b"\x81\xa8children\x91" * 100_000,
    "an array of four billion": b"\xdd\xff\xff\xff\xff",
    "arrays of four billion in arrays": b"\xdd\xff\xff\xff\xff" * 500,
    "arrays of 65535 in arrays": b"\xdc\xff\xff" * 900,
    "a map of four billion": b"\xdf\xff\xff\xff\xff",
    "a text of four gigabytes": b"\xdb\xff\xff\xff\xff",
    "bytes of four gigabytes": b"\xc6\xff\xff\xff\xff",
    "an ext type of four gigabytes": b"\xc9\xff\xff\xff\xff\x01",
    "an ext type with a pickle": EXT,
    "an ext type inside": b"\x91" + EXT,
    "a time stamp of another size": b"\xc7\x02\xff\x00\x00",
    "a reserved byte": b"\xc1",
    "text that is none": b"\xa2\xff\xfe",
    "more after it": b"\x01\x01",
}


@pytest.mark.parametrize("name", VALUES)
def test_a_made_up_value_is_a_corrupt_file_or_plain_data(name: str) -> None:
    with harmless():
        for head in (b"\x01", b"\x02" + bytes(8)):
            for kind in TYPES:
                _opened(ValueSerializer[Any](kind).decode, head + VALUES[name])
            _opened(decode_untyped, head + VALUES[name])
            _opened(lambda data: timestamp_of(data, "processing"), head + VALUES[name])
        _opened(decode_key, VALUES[name])


PLAIN = (int, float, str, bytes, list, tuple, set, dict, type(None), msgspec.msgpack.Ext, msgspec.Struct)


def _opened(decode: Callable[[bytes], Any], data: bytes) -> None:
    try:
        value = decode(data)
    except CorruptFile as e:
        assert e.facts
    else:
        assert isinstance(value, PLAIN)


@pytest.mark.parametrize("name", [n for n in VALUES if n not in ("an ext type with a pickle", "an ext type inside")])
def test_only_whole_values_of_known_forms_are_read(name: str) -> None:
    with pytest.raises(CorruptFile):
        decode_untyped(b"\x01" + VALUES[name])
