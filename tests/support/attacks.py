"""Input that would take gigabytes or wait without end, and the process in which a test reads it.

``python -m tests.support.attacks NAME FOLDER`` prints JSON: the code of the error that the input led to, or
``accepted``; bytes of memory beyond what the process had; and seconds of CPU time, those of child processes included.
A process that waits is ended.
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import logging
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
from rocksdict import DBCompressionType
from urllib3 import Retry

from stateflow.checkpoint.history import LIMIT as HISTORY_LIMIT
from stateflow.checkpoint.history import read_history
from stateflow.checkpoint.job_requests import open_requests
from stateflow.checkpoint.log.documents import LogEntry, Manifest, OperatorState, Origin, Savepoint
from stateflow.checkpoint.log.manifest_files import LIMIT, seal, unseal, write_bytes
from stateflow.checkpoint.savepoints.catalog import savepoint_at
from stateflow.clock import SystemClock
from stateflow.config.settings import LARGEST_VALUE
from stateflow.config.sources import read_toml
from stateflow.connectors.delta.log import LOG_FOLDER
from stateflow.connectors.delta.versions import read_entry
from stateflow.connectors.table_folder import DiskFolder
from stateflow.errors import CorruptFile, StateflowError
from stateflow.operations import RekeyRequest, rekey_savepoint
from stateflow.operations.job_root import open_root
from stateflow.query.state import check_entry, read_stored_entries
from stateflow.state.backends import hash_maps
from stateflow.state.backends.rocksdb.manifest import ByteReader, compose, parse
from stateflow.state.backends.rocksdb.tables import check_table_file
from stateflow.state.handles import FileHandle, OperatorPart, StateFile, StateSchema, SubtaskState
from stateflow.state.kinds.keyed_state import state_names
from stateflow.state.operator_content import check_parts
from stateflow.state.schema import type_schema
from stateflow.state.stored_key import state_id
from stateflow.storage import PosixStorage
from stateflow.storage.hdfs import HdfsStorage
from stateflow.storage.paths import data_folder
from stateflow.types.decoders import MEMORY_LIMIT, type_memory
from stateflow.types.key_encoding import encode_key
from stateflow.types.serializers import VALUE_FORMAT, ValueSerializer, check_untyped, decode_untyped
from tests.fuzz.corpus import make_store
from tests.fuzz.mutations import sealed
from tests.servers.hostile import answer
from tests.support.delta_tables import entry_path
from tests.support.memory import MemoryPeak
from tests.support.table_files import ForgedTable, bomb, write_store


def operator_content(field: str, unit: bytes, size: int, then: bytes = b"") -> bytes:
    """The msgpack of an `OperatorContent` of about `size` bytes.

    Args:
        field: its field, an array.
        unit: the elements of the array.
        size: the size of the array.
        then: another field with its value.
    """
    count = size // len(unit)
    start = bytes([0x82 if then else 0x81]) + msgspec.msgpack.encode(field) + b"\xdd" + count.to_bytes(4, "big")
    return start + unit * count + then


def map_of_names() -> bytes:
    """The msgpack of an `OperatorContent` of 500 KB, with many broadcast states."""
    return msgspec.msgpack.encode({"broadcasts": {f"{n:04x}": {} for n in range(1 << 16)}})


def _manifest(parts: list[OperatorPart]) -> Manifest:
    """A manifest with one operator, which has these parts and no keyed state."""
    operator = OperatorState(
        uid="u", parallelism=len(parts), key_types=[], key_names=[], states=[], subtasks=[], parts=parts
    )
    return Manifest(job_uuid="0" * 32, generation=1, ordinal=1, operators=[operator], sources=[])


def write_manifest(folder: Path, contents: list[bytes], *, inline: bool) -> None:
    """Writes a job root with a manifest, whose operator has these parts, in the manifest or in files."""
    storage = PosixStorage(folder / "root")
    parts = [
        OperatorPart(subtask=n, memory=0, content=content)
        if inline
        else OperatorPart(subtask=n, memory=0, handle=write_bytes(storage, f"data/{n}", content))
        for n, content in enumerate(contents)
    ]
    (folder / "manifest").write_bytes(seal(_manifest(parts))[0])


def write_savepoint(folder: Path, contents: list[bytes]) -> None:
    """Writes a savepoint with one key group, whose operator has these parts."""
    storage = PosixStorage(folder / "sp")
    parts = [
        OperatorPart(subtask=n, memory=0, handle=write_bytes(storage, f"files/{n}", content))
        for n, content in enumerate(contents)
    ]
    document = Savepoint(
        version=1, id="0" * 32, name="n", origin=Origin.MANUAL, made_at="2026-01-01T00:00:00+00:00",
        committed_at="2026-01-01T00:00:00+00:00", by="b", job="j", job_uuid="0" * 32, max_parallelism=1,
        checkpoint_id=1, manifest=_manifest(parts), sinks={},
    )  # fmt: skip
    (folder / "sp" / "_savepoint").write_bytes(seal(document)[0])


def rekey(folder: Path) -> None:
    """Copies the savepoint with another number of key groups, for which raw keyed state is looked for."""
    rekey_savepoint(RekeyRequest(str(folder / "sp"), 8, str(folder / "copies")))


def check_manifest(folder: Path) -> None:
    manifest, _ = unseal((folder / "manifest").read_bytes(), Manifest, "manifest")
    check_parts(PosixStorage(folder / "root"), manifest.operators[0].parts)


STATE = StateSchema(name="totals", kind="value", value_type="list", type=type_schema(list))
KEY = b"\0\0" + state_id("totals") + encode_key(("k", None))


def write_stored(make: Callable[[], bytes], compression: DBCompressionType | None, folder: Path) -> None:
    """Writes ``operator``, which refers to files in ``root``.

    Args:
        make: returns the stored value.
        compression: of the data file of RocksDB; None for the filesystem backend.
    """
    storage = PosixStorage(folder / "root")
    files: list[tuple[str, bytes]] = []
    manifest = b""
    if compression is None:
        files.append(("entries", b"".join(hash_maps.encode_snapshot(iter([(KEY, make())])))))
    else:
        write_store(folder / "store", {KEY: make()}, compression)
        files += [(path.name, path.read_bytes()) for path in (folder / "store").glob("*.sst")]
        current = folder / "store" / (folder / "store" / "CURRENT").read_text().strip()
        manifest = compose(parse(current.read_bytes(), "m"))
    subtask = SubtaskState(
        subtask=0, first_group=0, last_group=0, snapshot="s",
        backend="filesystem" if compression is None else "rocksdb",
        files=[
            StateFile(handle=write_bytes(storage, f"data/{name}", content), local_name=name) for name, content in files
        ],
        store_manifest=manifest,
    )  # fmt: skip
    operator = OperatorState(
        uid="u", parallelism=1, key_types=["string"], key_names=["key"], states=[STATE], subtasks=[subtask]
    )
    (folder / "operator").write_bytes(msgspec.json.encode(operator))


def _read(folder: Path, decode: Callable[[bytes], Any]) -> None:
    operator = msgspec.json.decode((folder / "operator").read_bytes(), type=OperatorState)
    for _, entries in read_stored_entries(operator, PosixStorage(folder / "root"), SystemClock()):
        for key, value in entries:
            check_entry(state_names(operator.states), 1, key, value, decode)


def read_untyped(folder: Path) -> None:
    """Reads the state as `read_state` does."""
    _read(folder, decode_untyped)


def verify(folder: Path) -> None:
    """Reads the state as ``verify --deep`` does."""
    _read(folder, check_untyped)


def read_as(kind: object) -> Callable[[Path], None]:
    """Returns a function that reads the state as a job which declares values of this type."""
    return lambda folder: _read(folder, ValueSerializer(kind).decode)


def stored(value: object) -> bytes:
    """A value as it is stored."""
    return VALUE_FORMAT + msgspec.msgpack.encode(value)


def repeated(unit: object, count: int) -> bytes:
    """The stored value of a list with `count` times the unit."""
    return b"%b\xdd%b%b" % (VALUE_FORMAT, count.to_bytes(4), msgspec.msgpack.encode(unit) * count)


def most(unit: object, kind: object = Any) -> bytes:
    """The stored value of a list with as many units as a type's values may have, within one percent."""
    sample = type_memory(kind).size(repeated(unit, 100_000)[1:], 1 << 60)
    return repeated(unit, MEMORY_LIMIT * 99_000 // sample)


@dataclass(frozen=True)
class Attack:
    """Hostile input.

    Attributes:
        prepare: creates the input below a folder.
        act: reads it.
        code: code of the error that it must lead to; ``accepted`` for none.
    """

    prepare: Callable[[Path], object]
    act: Callable[[Path], object]
    code: str = "corrupt-file"


def _repeated(start: bytes, unit: bytes, end: bytes, size: int) -> bytes:
    """A text of about `size` bytes: the unit repeated with commas."""
    count = (size - len(start) - len(end) - 100) // (len(unit) + 1)
    return start + b",".join([unit] * count) + end


def _distinct(start: bytes, value: bytes, end: bytes, size: int) -> bytes:
    """A text of about `size` bytes: an object with as many names as fit."""
    count = (size - len(start) - len(end) - 100) // (len(value) + 10)
    return start + b",".join(b'"%06x":%b' % (n, value) for n in range(count)) + end


# -- documents --------------------------------------------------------------------------------------------------------

_SAVEPOINT = (
    b'{"version":1,"id":"i","name":"n","origin":"manual","made_at":"a","by":"b","job":"j","job_uuid":"u",'
    b'"max_parallelism":1,"checkpoint_id":1,"sinks":{},"manifest":{"job_uuid":"u","generation":1,"ordinal":1,'
    b'"sources":[],"operators":[],%b}}'
)
_ENTRY = (
    b'{"job_uuid":"u","seq":1,"kind":"claim","generation":1,"ordinal":0,"writer":"w","nonce":"n","parent":"","at":"a",'
)
_MANIFEST = b'{"job_uuid":"u","generation":1,"ordinal":1,"sources":[],"operators":['
_TYPES = (
    b'{"uid":"u","parallelism":1,"key_types":[],"subtasks":[],'
    b'"states":[{"name":"n","kind":"k","value_type":"v","earlier":['
)


def _savepoint(inner: Callable[[int], bytes], size: int) -> bytes:
    head, tail = _SAVEPOINT.split(b"%b")
    return sealed(head + inner(size - len(_SAVEPOINT)) + tail)


def _document(kind: type[Savepoint | LogEntry | Manifest], make: Callable[[], bytes]) -> Attack:
    return Attack(
        lambda folder: (folder / "document").write_bytes(make()),
        lambda folder: unseal((folder / "document").read_bytes(), kind, "document"),
    )


SAVEPOINTS: dict[str, Callable[[int], bytes]] = {
    "columns": lambda size: _distinct(b'"columns":{', b"{}", b"}", size),
    "column types": lambda size: _distinct(b'"columns":{"a":{', b'"b"', b"}}", size),
    "records": lambda size: _repeated(
        b'"history":[',
        b'{"checkpoint_id":1,"generation":1,"ordinal":1,"committed_at":"","duration_ms":1,"increment_bytes":1,'
        b'"full_bytes":1,"files":1,"rows_in":1,"rows_out":{}}',
        b"]",
        size,
    ),
    "watermarks": lambda size: _repeated(b'"watermarks":[', b'{"uid":"","active_at":999}', b"]", size),
}


def _write_savepoint(folder: Path, inner: Callable[[int], bytes], size: int) -> None:
    (folder / "sp").mkdir()
    (folder / "sp" / "_savepoint").write_bytes(_savepoint(inner, size))


def _savepoint_attack(inner: Callable[[int], bytes], size: int, code: str) -> Attack:
    return Attack(lambda f: _write_savepoint(f, inner, size), lambda f: savepoint_at(f"{f}/sp"), code)


def _history(text: bytes, name: str) -> Attack:
    def prepare(folder: Path) -> None:
        (folder / "history").mkdir()
        (folder / "history" / name).write_bytes(text)

    return Attack(prepare, lambda folder: read_history(PosixStorage(folder)), "accepted")


_RECORD = (
    b'{"checkpoint_id":1,"generation":1,"ordinal":1,"committed_at":"","duration_ms":1,"increment_bytes":1,'
    b'"full_bytes":1,"files":1,"rows_in":1,"rows_out":{'
)

DOCUMENTS = {
    **{f"savepoint {n}": _savepoint_attack(i, LIMIT, "corrupt-file") for n, i in SAVEPOINTS.items()},
    "savepoint of 64 MiB": _savepoint_attack(SAVEPOINTS["columns"], 64 << 20, "data"),
    "log entry numbers": _document(
        LogEntry, lambda: sealed(_repeated(_ENTRY + b'"requests":[', b'"aa"', b"]}", LIMIT))
    ),
    "log entry objects": _document(
        LogEntry,
        lambda: sealed(
            _repeated(_ENTRY + b'"ancestry":{"since":1,"restores":[', b'{"seq":300,"base":300}', b"]}}", LIMIT)
        ),
    ),
    "manifest types": _document(
        Manifest, lambda: sealed(_repeated(_MANIFEST + _TYPES, b'{"root":{"kind":""}}', b"]}]}]}", LIMIT))
    ),
    "manifest wide texts": _document(
        Manifest,
        lambda: sealed(_MANIFEST + b'],"x":"", "job_uuid":"' + b"\\ud83d\\ude00" + b"a" * (LIMIT - 300) + b'"}'),
    ),
    "manifest escapes": _document(
        Manifest, lambda: sealed(_MANIFEST + b'],"job_uuid":"' + b"\\u0100" * (LIMIT // 6 - 100) + b'"}')
    ),
    "history object": _history(_distinct(_RECORD, b"999", b"}}", HISTORY_LIMIT), f"{1:020d}-checkpoint.json"),
    "history objects": _history(
        b"[" + _distinct(_RECORD, b"999", b"}}", HISTORY_LIMIT) + b"]", f"{1:020d}-checkpoints-1-0a0a0a0a.json"
    ),
    "history brackets": _history(b"[" * HISTORY_LIMIT, f"{1:020d}-checkpoints-1-0a0a0a0a.json"),
}


# -- operator state ---------------------------------------------------------------------------------------------------


def _parts(make: Callable[[], list[bytes]], *, inline: bool = False, code: str = "corrupt-file") -> Attack:
    return Attack(lambda folder: write_manifest(folder, make(), inline=inline), check_manifest, code)


_SMALL = b"\xc4\x02ab"
OPERATOR_STATE = {
    "operator part elements": _parts(lambda: [operator_content("raw", _SMALL, 28 << 20)]),
    "operator part pieces": _parts(lambda: [operator_content("raw_keyed", b"\x92\x01\xc4\x00", 28 << 20)]),
    "operator part of 64 MiB": _parts(lambda: [operator_content("raw", b"\0", 64 << 20)]),
    "operator part with a field twice": _parts(
        lambda: [operator_content("raw", _SMALL, 28 << 20, then=b"\xa3raw\x90")], code="accepted"
    ),
    "operator part with nested lists": _parts(lambda: [operator_content("raw", b"\x91" * 100 + b"\x90", 28 << 20)]),
    "operator part with an element of lists": _parts(
        lambda: [msgspec.msgpack.encode({"lists": {"a": [repeated([], 28 << 20)]}})]
    ),
    "operator parts": _parts(lambda: [operator_content("raw", _SMALL, 1 << 20)] * 10),
    "operator part inline": _parts(lambda: [operator_content("raw", _SMALL, 28 << 20)], inline=True),
    "operator parts inline": _parts(lambda: [map_of_names()] * 60, inline=True),
}


def _rekeyed(make: Callable[[], list[bytes]], code: str = "corrupt-file") -> Attack:
    return Attack(lambda folder: write_savepoint(folder, make()), rekey, code)


_PIECE = b"\x92\x00\xc4\x00"
REKEYED = {
    "raw keyed pieces, rekeyed": _rekeyed(lambda: [operator_content("raw_keyed", _PIECE, 28 << 20)]),
    "raw keyed state of 64 MiB, rekeyed": _rekeyed(lambda: [operator_content("raw_keyed", b"\0", 64 << 20)]),
    "raw keyed lists, rekeyed": _rekeyed(lambda: [operator_content("raw_keyed", b"\x91" * 100 + b"\x90", 28 << 20)]),
    "raw keyed state of a hostile length, rekeyed": _rekeyed(
        lambda: [b"\x81\xa9raw_keyed\xdd\xff\xff\xff\xff" + _PIECE]
    ),
    "raw keyed state in another field, rekeyed": _rekeyed(lambda: [b"\x81\xa9raw_keyed\xa1a"]),
    "raw operator state, rekeyed": _rekeyed(lambda: [operator_content("raw", _SMALL, 28 << 20)]),
    "cut raw keyed state, rekeyed": _rekeyed(lambda: [msgspec.msgpack.encode({"raw_keyed": [(0, b"abc")]})[:-1]]),
    "raw keyed state of many subtasks, rekeyed": _rekeyed(lambda: [operator_content("raw", _SMALL, 1 << 20)] * 20),
    "one raw keyed piece, rekeyed": _rekeyed(
        lambda: [msgspec.msgpack.encode({"raw_keyed": [(0, b"abc")]})], "incompatible-state"
    ),
    "raw operator state of one piece, rekeyed": _rekeyed(
        lambda: [msgspec.msgpack.encode({"raw": [b"abc"]})], "accepted"
    ),
}


# -- other texts and servers ------------------------------------------------------------------------------------------


def _delta(line: Callable[[], bytes], size: int = 0) -> Attack:
    def prepare(folder: Path) -> None:
        (folder / LOG_FOLDER).mkdir()
        entry_path(folder, 0).write_bytes(line())
        if size:
            os.truncate(entry_path(folder, 0), size)

    return Attack(prepare, lambda folder: read_entry(DiskFolder(folder), 0))


def _toml(text: Callable[[], bytes], code: str = "config") -> Attack:
    return Attack(
        lambda folder: (folder / "s.toml").write_bytes(text()), lambda folder: read_toml(folder / "s.toml"), code
    )


LISTING = "WebHDFS listing"
"""The test runs its server, whose memory does not count."""


def listing(size: int) -> bytes:
    """Returns the answer of a NameNode about a folder with many files."""
    status = b'{"pathSuffix":"ab","type":"FILE","length":300,"modificationTime":300}'
    return answer(200, _repeated(b'{"FileStatuses":{"FileStatus":[', status, b"]}}", size))


def _listed(folder: Path) -> None:
    HdfsStorage("webhdfs", (folder / "host").read_text(), "/jobs/a", Retry(total=0)).list("log/")


def _varints(folder: Path) -> None:
    reader = ByteReader((folder / "numbers").read_bytes())
    try:
        while reader:
            reader.varint()
    except ValueError as e:
        raise CorruptFile(str(e)) from e


TEXTS = {
    "Delta line of 400 MB": _delta(lambda: b'{"commitInfo":{"x":"', 400 << 20),
    "Delta lists": _delta(lambda: _repeated(b'{"commitInfo":{"x":[', b"[]", b"]}", 3 << 20)),
    "TOML of 400 MB": Attack(
        lambda folder: os.truncate(os.open(folder / "s.toml", os.O_CREAT | os.O_WRONLY), 400 << 20),
        lambda folder: read_toml(folder / "s.toml"),
        "config",
    ),
    "TOML lists": _toml(lambda: b"a = [" + b"[]," * 30_000),
    "TOML parts of a key": _toml(lambda: b"a." * 30_000 + b"a = 1"),
    "TOML parts of keys": _toml(lambda: b"\n".join(b"a." * 499 + b"b%d = 1" % n for n in range(60)), "accepted"),
    "MANIFEST of 48 MB": Attack(
        lambda folder: (folder / "m").write_bytes(bytes(48 << 20)),
        lambda folder: parse((folder / "m").read_bytes(), "m"),
    ),
    LISTING: Attack(lambda _: None, _listed, "storage"),
    "varint of 10 MB": Attack(lambda folder: (folder / "numbers").write_bytes(b"\xff" * (10 << 20)), _varints),
}


# -- data files -------------------------------------------------------------------------------------------------------


def _store(folder: Path) -> Path:
    make_store(folder / "store", DBCompressionType.lz4(), {b"\0\0key": bytes(LARGEST_VALUE)})
    return next((folder / "store").glob("*.sst"))


def _forged_store(folder: Path) -> None:
    make_store(folder / "store", DBCompressionType.none())
    path = min((folder / "store").glob("*.sst"))
    table = ForgedTable(path.read_bytes())
    bomb(table)
    path.write_bytes(table.sealed())


def _check(folder: Path) -> None:
    try:
        check_table_file(min((folder / "store").glob("*.sst")))
    except ValueError as e:
        raise CorruptFile(str(e)) from e


FILES = {"LZ4 value of 4 GB": Attack(_forged_store, _check), "LZ4 value of 16 MiB": Attack(_store, _check, "accepted")}


# -- stored values ----------------------------------------------------------------------------------------------------

_PLACES = {"LZ4": DBCompressionType.lz4(), "a plain store": DBCompressionType.none(), "a hash map": None}
_REFUSED: list[tuple[str, Callable[[Path], object], Callable[[], bytes]]] = [
    ("lists", read_untyped, lambda: repeated([], LARGEST_VALUE - 6)),
    ("lists in verification", verify, lambda: repeated([], LARGEST_VALUE - 6)),
    ("sets", read_as(list[set[int]]), lambda: repeated([], 1 << 20)),
    ("text in an error", read_as(Literal["a"]), lambda: stored("\x01" * 1_900_000 + "\U0001f600")),
    ("long text in an error", read_as(Literal["a"]), lambda: stored("\x01" * (12 << 20) + "\U0001f600")),
    ("decimals", read_as(list[Decimal]), lambda: repeated(1, LARGEST_VALUE - 6)),
]
_LARGEST: list[tuple[str, Callable[[Path], object], Callable[[], bytes]]] = [
    ("bytes", read_as(bytes), lambda: stored(bytes(LARGEST_VALUE - 6))),
    ("text", read_as(str), lambda: stored("a" * 10_000_000 + "Ā\U0001f600")),
    ("numbers", read_as(list[float]), lambda: most(0.5)),
    ("lists", read_untyped, lambda: most([])),
    ("maps", read_untyped, lambda: most({"a": 1})),
    ("sets", read_as(list[set[int]]), lambda: most([300, 301, 302, 303, 304], list[set[int]])),
    ("lists in verification", verify, lambda: most([])),
]
VALUES = {
    f"value of {name} in {place}, {code}": Attack(partial(write_stored, make, compression), act, code)
    for code, kinds in (("corrupt-file", _REFUSED), ("accepted", _LARGEST))
    for name, act, make in kinds
    for place, compression in _PLACES.items()
}


# -- legitimate ones --------------------------------------------------------------------------------------------------


def large_manifest(subtasks: int, files: int) -> Manifest:
    """Returns the manifest of a job with RocksDB, each file in an object of its own."""

    def file(subtask: int, number: int) -> StateFile:
        sha256 = hashlib.sha256(b"%d-%d" % (subtask, number)).hexdigest()
        key = f"{data_folder(4321, 100_000 + number, sha256[:12])}totals-{subtask}-{number:06d}.sst"
        return StateFile(handle=FileHandle(key=key, size=64 << 20, sha256=sha256), local_name=f"{number:06d}.sst")

    states = [
        SubtaskState(
            subtask=subtask, first_group=subtask, last_group=subtask,
            snapshot=f"{data_folder(4321, 100_000, 'attempt')}totals-{subtask}-",
            files=[file(subtask, 100 + number) for number in range(files)], store_manifest=bytes(114 * files),
        )
        for subtask in range(subtasks)
    ]  # fmt: skip
    operator = OperatorState(
        uid="totals", parallelism=subtasks, key_types=["bigint"], key_names=["key"], states=[], subtasks=states
    )
    return Manifest(job_uuid="0" * 32, generation=1, ordinal=1, operators=[operator], sources=[])


LEGITIMATE = {
    "manifest of 10,000 subtasks with 10 files": Attack(
        lambda folder: (folder / "document").write_bytes(seal(large_manifest(10_000, 10))[0]),
        lambda folder: unseal((folder / "document").read_bytes(), Manifest, "document"),
        "accepted",
    )
}

# -- FIFOs ------------------------------------------------------------------------------------------------------------


def _fifo(name: str, act: Callable[[Path], object], code: str = "corrupt-file") -> Attack:
    def prepare(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(folder / name)

    return Attack(prepare, act, code)


FIFOS = {
    "FIFO for a savepoint": _fifo("sp/_savepoint", lambda folder: savepoint_at(f"{folder}/sp")),
    "FIFO for FORMAT": _fifo("FORMAT", lambda folder: open_root(str(folder))),
    "FIFO for a history object": _fifo(
        f"history/{1:020d}-checkpoint.json", lambda folder: read_history(PosixStorage(folder)), "accepted"
    ),
    "FIFO for a request": _fifo("requests/q", lambda folder: open_requests(PosixStorage(folder)), "accepted"),
    "FIFO for an object": _fifo("data/x", lambda folder: list(PosixStorage(folder).chunks("data/x"))),
    "FIFO for a log entry of Delta": _fifo(
        f"{LOG_FOLDER}/{0:020d}.json", lambda folder: read_entry(DiskFolder(folder), 0)
    ),
}

_FIFO_SECONDS, _WALL_SECONDS = 10, 60
"""After how long a process is ended that waits: a FIFO takes no CPU time, and others may take 2 s on a busy machine."""

ATTACKS = {**DOCUMENTS, **OPERATOR_STATE, **REKEYED, **TEXTS, **FILES, **VALUES, **LEGITIMATE, **FIFOS}


def _cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def main(name: str, folder: Path) -> None:
    logging.disable()
    attack = ATTACKS[name]
    # A thread of its own ends the process, whatever it waits for.
    faulthandler.dump_traceback_later(_FIFO_SECONDS if name in FIFOS else _WALL_SECONDS, exit=True)
    peak, started = MemoryPeak(), _cpu_seconds()
    try:
        attack.act(folder)
        code = "accepted"
    except StateflowError as e:
        code = e.code
    print(json.dumps({"code": code, "memory": peak.bytes(), "cpu": _cpu_seconds() - started}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
