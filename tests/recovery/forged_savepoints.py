"""Savepoints as an attacker leaves them who may write their folder: every hash that is recorded fits what is stored."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from rocksdict import BlockBasedOptions, DBCompressionType, Rdict

from stateflow.config.settings import RocksDBSettings
from stateflow.state.backends.rocksdb.backend import rocksdb_options
from stateflow.state.backends.rocksdb.manifest import StoreFile, StoreManifest, compose, parse
from tests.support import root_files, stored_state
from tests.support.table_files import ATTACKS, ForgedTable, endless_groups

STRANGER = 65534
_VALUES: list[Any] = [None, True, -1, 2**31, 2**63, 2**70, "", "x", "../../x", "\x1b[2J", "a" * 300, [], {}, [[]], "²"]


class Outcome(Enum):
    """What may come of a forged savepoint.

    Attributes:
        REFUSED: nothing can be restored from it.
        SAME: it has the same content as before; it is restored, or refused.
        ANY: its content may have changed: what is restored is the attacker's.
    """

    REFUSED = "refused"
    SAME = "same"
    ANY = "any"


@dataclass
class ForgedSavepoint:
    """A savepoint in `folder`, and a folder of others.

    Attributes:
        outside: belongs to another user; the attacker can make links to it.
        document: what `seal` writes.
    """

    folder: Path
    outside: Path
    rng: random.Random

    def __post_init__(self) -> None:
        self.marker = self.folder / "_savepoint"
        self.document = root_files.unsealed(self.marker.read_bytes())[0]

    @property
    def subtask(self) -> Any:
        """The record of a subtask that has files, chosen at random."""
        subtasks = [s for o in self.document["manifest"]["operators"] for s in o["subtasks"] if s["files"]]
        return self.rng.choice(subtasks)

    @property
    def handles(self) -> list[Any]:
        """The handles of all files, also of operator state."""
        operators = self.document["manifest"]["operators"]
        parts = [part["handle"] for operator in operators for part in operator["parts"]]
        return [*root_files.handles(self.document["manifest"]), *parts]

    @property
    def files(self) -> list[Path]:
        """The files except the document."""
        return sorted(path for path in self.folder.rglob("*") if path.is_file() and path != self.marker)

    def seal(self) -> None:
        """Writes the document with a hash that fits."""
        self.marker.write_bytes(root_files.sealed(self.document))

    def store(self, handle: Any, data: bytes) -> None:
        """Stores other bytes under a new name, and records them."""
        sha256 = hashlib.sha256(data).hexdigest()
        handle.update(key=f"files/{sha256}", size=len(data), sha256=sha256)
        (self.folder / handle["key"]).write_bytes(data)

    def make_plain_store(self, entries: Mapping[bytes, bytes] | None = None) -> tuple[Any, StoreManifest]:
        """Writes the store of a subtask again, as one file without compression.

        Args:
            entries: other content, each entry in a block of its own; by default it stays the same.
        """
        subtask = self.subtask
        written = stored_state.stored_entries(self.folder, subtask) if entries is None else entries.items()
        with tempfile.TemporaryDirectory() as folder:
            options = rocksdb_options(RocksDBSettings())
            options.set_compression_type(DBCompressionType.none())
            if entries is not None:
                blocks = BlockBasedOptions()
                blocks.set_block_size(1)
                options.set_block_based_table_factory(blocks)
            store = Rdict(folder, options=options)
            for key, value in written:
                store.put(key, value)
            store.flush()
            store.close()
            (table,) = Path(folder).glob("*.sst")
            manifest = parse((Path(folder) / (Path(folder) / "CURRENT").read_text().strip()).read_bytes(), "m")
            handle: dict[str, Any] = {}
            self.store(handle, table.read_bytes())
        subtask.update(files=[{"handle": handle, "local_name": table.name, "part": None}])
        subtask.update(store_manifest=root_files.encoded(compose(manifest)))
        return subtask, manifest


Act = Callable[[ForgedSavepoint], Sequence[Path] | None]


@dataclass(frozen=True)
class Forgery:
    """A kind of attack.

    Attributes:
        act: changes a savepoint; returns the files that another user can change later.
        needs: state backend of the jobs that it is possible for; empty for any.
    """

    name: str
    act: Act
    outcome: Outcome
    needs: str = ""


FORGERIES: list[Forgery] = []


def _forgery(outcome: Outcome, needs: str = "") -> Callable[[Act], Act]:
    def add(act: Act) -> Act:
        FORGERIES.append(Forgery(getattr(act, "__name__").strip("_"), act, outcome, needs))  # noqa: B009 - not of all callables
        return act

    return add


# -- RocksDB ----------------------------------------------------------------------------------------------------------


def _numbers(rng: random.Random, file: StoreFile) -> StoreFile:
    huge = rng.choice([1 << 31, (1 << 32) - 1, 1 << 62, (1 << 64) - 1])
    level, low = rng.choice([7, 255, huge]), (file.sequences[1] + 1, file.sequences[0])
    changes: list[dict[str, Any]] = [
        {"level": level}, {"number": rng.choice([0, 1 << 62, (1 << 64) - 1])},
        {"size": rng.choice([0, file.size + 1, huge])}, {"smallest": b"\xff" * 12, "largest": b"\0" * 12},
        {"smallest": b"short"}, {"sequences": rng.choice([low, (0, 1 << 56), (huge, huge)])},
        {"epoch": rng.choice([1 << 62, (1 << 64) - 1])}, {"details": ((64 | rng.randrange(64), b"x"),)},
    ]  # fmt: skip
    return replace(file, **rng.choice(changes))


@_forgery(Outcome.REFUSED, "rocksdb")
def _numbers_in_a_store_manifest(forged: ForgedSavepoint) -> None:
    subtask, manifest = forged.make_plain_store()
    (file,) = manifest.files
    subtask["store_manifest"] = root_files.encoded(compose(replace(manifest, files=(_numbers(forged.rng, file),))))
    forged.seal()


@_forgery(Outcome.REFUSED, "rocksdb")
def _level_of_two_gibi(forged: ForgedSavepoint) -> None:
    subtask, manifest = forged.make_plain_store()
    (file,) = manifest.files
    subtask["store_manifest"] = root_files.encoded(compose(replace(manifest, files=(replace(file, level=1 << 31),))))
    forged.seal()


def attack_table(
    forged: ForgedSavepoint, attack: Callable[[ForgedTable], None], entries: Mapping[bytes, bytes] | None = None
) -> None:
    """Stores a subtask in a forged data file. `entries`: its content, as for `ForgedSavepoint.make_plain_store`."""
    subtask, _ = forged.make_plain_store(entries)
    handle = subtask["files"][0]["handle"]
    table = ForgedTable((forged.folder / handle["key"]).read_bytes())
    attack(table)
    forged.store(handle, table.sealed())
    forged.seal()


@_forgery(Outcome.ANY, "rocksdb")
def _a_loop_without_an_end(forged: ForgedSavepoint) -> None:
    """The structure of this one is right: a read ends where the keys go back."""
    attack_table(forged, endless_groups, {b"\0\1": b"", b"\0\3": b""})


@_forgery(Outcome.REFUSED, "rocksdb")
def _blocks_of_a_table(forged: ForgedSavepoint) -> None:
    attack_table(forged, forged.rng.choice(ATTACKS))


@_forgery(Outcome.SAME, "rocksdb")
def _a_store_written_anew(forged: ForgedSavepoint) -> None:
    """What is refused elsewhere is refused for its content."""
    forged.make_plain_store()
    forged.seal()


# -- files ------------------------------------------------------------------------------------------------------------


@_forgery(Outcome.REFUSED)
def _file_of_random_bytes(forged: ForgedSavepoint) -> None:
    forged.store(forged.rng.choice(forged.handles), forged.rng.randbytes(forged.rng.randrange(2000)))
    forged.seal()


@_forgery(Outcome.REFUSED, "filesystem")
def _block_of_four_gigabytes(forged: ForgedSavepoint) -> None:
    handle = forged.subtask["files"][0]["handle"]
    blocks = [b"\xff\xff\xff\xff", b"\0\0\0\5\xdd\xff\xff\xff\xff", b"\0\0\0\5\x91\xc6\xff\xff\xff"]
    forged.store(handle, b"SFKV\x01" + forged.rng.choice(blocks) + bytes(12))
    forged.seal()


@_forgery(Outcome.REFUSED)
def _bytes_without_their_hash(forged: ForgedSavepoint) -> None:
    path, rng = forged.rng.choice(forged.files), forged.rng
    data = path.read_bytes()
    at = rng.randrange(len(data))
    changed = [data[:at], data + b"x", data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]]
    path.write_bytes(rng.choice(changed))


@_forgery(Outcome.REFUSED)
def _size_or_hash_of_another(forged: ForgedSavepoint) -> None:
    handle, rng = forged.rng.choice(forged.handles), forged.rng
    other: dict[str, Any] = rng.choice(
        [
            {"size": rng.choice([0, -1, handle["size"] + 1, 1 << 62, 1 << 80])},
            {"sha256": rng.choice(["", "0" * 64, "../" * 20 + "etc/passwd", "A" * 64])},
        ]
    )
    handle.update(other)
    forged.seal()


@_forgery(Outcome.REFUSED)
def _path_out_of_the_savepoint(forged: ForgedSavepoint) -> None:
    """The file contains the recorded bytes."""
    handle = forged.rng.choice(forged.handles)
    target = forged.outside / handle["sha256"]
    shutil.copy(forged.folder / handle["key"], target)
    relative = os.path.relpath(target, forged.folder)
    handle["key"] = forged.rng.choice([relative, str(target), f"files/../{relative}", f"./{relative}", f"/{relative}"])
    forged.seal()


def _moved_out(forged: ForgedSavepoint, path: Path) -> Path:
    target = forged.outside / f"moved-{path.name}"
    path.rename(target)
    return target


@_forgery(Outcome.REFUSED)
def _link_instead_of_a_file(forged: ForgedSavepoint) -> None:
    """The link leads to the very bytes that are recorded."""
    path = forged.rng.choice([*forged.files, forged.marker])
    path.symlink_to(_moved_out(forged, path))


@_forgery(Outcome.REFUSED)
def _link_instead_of_the_folder(forged: ForgedSavepoint) -> None:
    (folder,) = (path for path in forged.folder.iterdir() if path.is_dir())
    folder.symlink_to(_moved_out(forged, folder))


@_forgery(Outcome.REFUSED)
def _something_that_is_not_a_file(forged: ForgedSavepoint) -> None:
    path = forged.rng.choice([*forged.files, forged.marker])
    path.unlink()
    kind = forged.rng.choice(["fifo", "folder", "socket", "device", "nothing"])
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        _bind(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")


def _bind(path: Path) -> None:
    """A socket; its address has at most 107 bytes, so it is bound where it is short."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{folder}/s")
        os.rename(f"{folder}/s", path)


@_forgery(Outcome.SAME)
def _files_of_another_user(forged: ForgedSavepoint) -> Sequence[Path]:
    """Only root can give files to another user; any user can let others write to them."""
    for path in forged.files:
        path.chmod(0o644)
        if os.geteuid() == 0:
            os.chown(path, STRANGER, STRANGER)
        else:
            path.chmod(0o666)
    return forged.files


@_forgery(Outcome.SAME)
def _links_in_the_savepoint(forged: ForgedSavepoint) -> None:
    """No file of the savepoint is one; the deletion of the savepoint must not follow them."""
    (forged.folder / "files" / "linked").symlink_to(forged.outside)
    (forged.folder / "linked").symlink_to(forged.outside)
    (forged.folder / "files" / "passwd").symlink_to(forged.outside / "secret")


# -- documents --------------------------------------------------------------------------------------------------------


@_forgery(Outcome.ANY)
def _values_of_the_document(forged: ForgedSavepoint) -> None:
    for _ in range(forged.rng.randrange(1, 4)):
        _change_value(forged.rng, forged.document)
    forged.seal()


def _change_value(rng: random.Random, place: Any) -> None:
    while isinstance(place, dict | list) and place:
        key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
        if rng.random() < 0.3 or not isinstance(place[key], dict | list) or not place[key]:
            if rng.random() < 0.2:
                del place[key]
            else:
                place[key] = rng.choice(_VALUES)
            return
        place = place[key]


@_forgery(Outcome.REFUSED)
def _document_without_its_hash(forged: ForgedSavepoint) -> None:
    data = forged.marker.read_bytes()
    at = forged.rng.randrange(len(data) - 1)
    forged.marker.write_bytes(forged.rng.choice([data[:at], data[:at] + b"\0" + data[at + 1 :], data + data]))


@_forgery(Outcome.REFUSED)
def _key_groups(forged: ForgedSavepoint) -> None:
    subtask = forged.subtask
    changes: list[dict[str, int]] = [
        {"first_group": -5},
        {"last_group": 1 << 60},
        {"first_group": 90, "last_group": 10},
        {"first_group": 0, "last_group": 127},
    ]
    subtask.update(forged.rng.choice(changes))
    forged.seal()
