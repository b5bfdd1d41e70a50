"""The state below a job root, decoded with plain msgpack and RocksDB: shares nothing with the code under test."""

from __future__ import annotations

import base64
import io
import struct
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import xxhash
from rocksdict import AccessType, Options, Rdict

from tests.support import canonical_reader
from tests.support.root_files import Document, head, read_manifest, unsealed


def read_state(root: Path, uid: str) -> dict[tuple[Any, ...], Any]:
    """All state of an operator at the head of a job root; as `state_of` returns it."""
    return state_of(root, read_manifest(root, head(root).doc["manifest"]), uid)


def state_of(folder: Path, manifest: Document, uid: str) -> dict[tuple[Any, ...], Any]:
    """All state of an operator: (state name, key, map key or None) -> value.

    Structs that are stored as arrays come back as lists.

    Args:
        folder: what the keys of the manifest's files begin at: a job root, or a savepoint's folder.
    """
    (operator,) = [o for o in manifest["operators"] if o["uid"] == uid]
    names = {state_id(s["name"]): s["name"] for s in operator["states"]}
    found: dict[tuple[Any, ...], Any] = {}
    for subtask in operator["subtasks"]:
        for key, value in stored_entries(folder, subtask):
            (group,) = struct.unpack(">H", key[:2])
            assert subtask["first_group"] <= group <= subtask["last_group"]
            parsed = (names[key[2:6]], *_parse_key(key[6:]))
            assert parsed not in found and value[:1] == b"\x01"
            found[parsed] = msgspec.msgpack.decode(value[1:])
    return found


def keyed_content(folder: Path) -> Counter[tuple[str, bytes, bytes]]:
    """The stored entries of a savepoint's keyed state and timers, without the positions of lists.

    Each is the operator's uid, the encoded key and the encoded value.
    """
    document, _ = unsealed((folder / "_savepoint").read_bytes())
    found: Counter[tuple[str, bytes, bytes]] = Counter()
    for operator in document["manifest"]["operators"]:
        lists = {state_id(s["name"]) for s in operator["states"] if s["kind"] == "list"}
        hints = {state_id(f"{s['name']}\0expiry") for s in operator["states"]}
        for subtask in operator["subtasks"]:
            for key, value in stored_entries(folder, subtask):
                # A run leaves those of values that were written again.
                if key[2:6] not in hints:
                    found[operator["uid"], key[:-12] if key[2:6] in lists else key, value] += 1
    return found


def state_id(name: str) -> bytes:
    return struct.pack(">I", xxhash.xxh32_intdigest(name.encode()))


def stored_entries(root: Path, subtask: Document) -> Iterator[tuple[bytes, bytes]]:
    if subtask["inline"] is not None:
        yield from _entries(base64.b64decode(subtask["inline"]))
    elif [f["local_name"] for f in subtask["files"]] == ["entries"]:
        yield from _entries((root / subtask["files"][0]["handle"]["key"]).read_bytes())
    elif subtask["backend"] == "canonical":
        for file in subtask["files"]:
            stream = io.BytesIO(content_of(root, file))
            canonical_reader.header(stream)
            for _, entries in canonical_reader.records(stream):
                yield from entries
    elif subtask["files"]:
        yield from _in_rocksdb(root, subtask)


def content_of(root: Path, file: Document) -> bytes:
    data: bytes = (root / file["handle"]["key"]).read_bytes()
    return data[file["part"]["offset"] :][: file["part"]["size"]] if file["part"] else data


def _entries(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """What a hash map's snapshot holds; see docs/format.md."""
    assert data[:5] == b"SFKV\x01"
    at, number = 5, 0
    while size := int.from_bytes(data[at : at + 4], "big"):
        items = msgspec.msgpack.decode(data[at + 4 : at + 4 + size])
        at += 4 + size
        number += len(items) // 2
        yield from zip(items[::2], items[1::2], strict=True)
    assert data[at + 4 :] == struct.pack(">Q", number)


def _in_rocksdb(root: Path, subtask: Document) -> Iterator[tuple[bytes, bytes]]:
    with tempfile.TemporaryDirectory() as folder:
        for file in subtask["files"]:
            (Path(folder) / file["local_name"]).write_bytes(content_of(root, file))
        (Path(folder) / "MANIFEST-000001").write_bytes(base64.b64decode(subtask["store_manifest"]))
        (Path(folder) / "CURRENT").write_text("MANIFEST-000001\n")
        store = Rdict(folder, Options(raw_mode=True), access_type=AccessType.read_only())
        items: Any = store.items()
        yield from list(items)
        store.close()


def _parse_key(data: bytes) -> tuple[tuple[Any, ...], Any]:
    """``key | 0 | user key``; keys are text and whole numbers here."""
    key, at = [], 0
    while data[at] != 0:
        part, at = _parse_part(data, at)
        key.append(part)
    user = _parse_part(data, at + 1)[0] if at + 1 < len(data) else None
    return tuple(key), user


def _parse_part(data: bytes, at: int) -> tuple[str | int, int]:
    if data[at] == 0x02:
        end = data.index(b"\0", at)
        return data[at + 1 : end].decode(), end + 1
    assert data[at] == 0x15, data.hex()
    return struct.unpack_from(">Q", data, at + 1)[0] - (1 << 63), at + 9
