"""Data files of RocksDB from elsewhere: those that RocksDB writes are accepted, and no accepted file does harm."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocksdict import DBCompressionType

from stateflow.config.settings import LARGEST_KEY, LARGEST_VALUE
from stateflow.state.backends.rocksdb.tables import Blocks, check_blocks, check_table_file
from tests.support.table_files import ATTACKS, ForgedTable, write_loaded_store, write_store

ENTRIES = {struct.pack(">HQ", n, n) + bytes(n % 20): bytes(n * 7 % 300) for n in range(100)}
LARGEST_MEMORY_KB = 100 << 10


def _tables(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.sst"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store without compression, so that any byte of a block can be changed."""
    folder = tmp_path_factory.mktemp("plain") / "store"
    write_store(folder, ENTRIES, DBCompressionType.none())
    return folder


@given(
    st.dictionaries(st.binary(min_size=2, max_size=300), st.binary(max_size=20_000), min_size=1, max_size=60),
    st.sampled_from([DBCompressionType.none, DBCompressionType.lz4]),
)
def test_every_file_that_rocksdb_writes_is_accepted(
    entries: dict[bytes, bytes], compression: Callable[[], DBCompressionType]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "store")
        write_store(store, entries, compression())
        assert len(_tables(store)) == 2
        for path in _tables(store):
            check_table_file(path)


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_forged_file_is_refused(plain: Path, tmp_path: Path, attack: Callable[[ForgedTable], None]) -> None:
    table = ForgedTable(_tables(plain)[0].read_bytes())
    attack(table)
    (tmp_path / "forged").write_bytes(table.sealed())
    with pytest.raises(ValueError):
        check_table_file(tmp_path / "forged")


@pytest.mark.parametrize(
    ("made", "forged"),
    [
        (b"version\2", b"version\1"),
        (b"version\2", b"version\3"),
        (b"version", b"versiom"),
        (b"global_seqno\0", b"global_seqno\1"),
        (b"global_seqno", b"global_seqnp"),
    ],
)
def test_a_loaded_file_is_accepted_and_none_that_was_made_in_another_way(
    tmp_path: Path, made: bytes, forged: bytes
) -> None:
    """RocksDB reads the values of these properties without checking their sizes."""
    write_loaded_store(tmp_path / "store", ENTRIES)
    for path in _tables(tmp_path / "store"):
        check_table_file(path)
    table = ForgedTable(_tables(tmp_path / "store")[0].read_bytes())
    block = table.block("properties")
    table.change(block, table.data.index(made, block.offset) - block.offset, forged)
    (tmp_path / "forged").write_bytes(table.sealed())
    with pytest.raises(ValueError):
        check_table_file(tmp_path / "forged")


@pytest.mark.parametrize(("kind", "is_accepted"), [(0, True), (1, True), (2, False), (15, False), (22, False)])
def test_a_kind_that_an_entry_shares_with_the_key_before_is_checked(kind: int, is_accepted: bool) -> None:
    """The second key is ``x``; its kind is the second byte of the first key."""
    sequence = bytes(7)
    first = bytes([0, 10, 0]) + b"x" + bytes([kind, 1]) + sequence
    second = bytes([2, 7, 0]) + sequence
    block = first + second + struct.pack("<II", 0, 1)
    if is_accepted:
        check_blocks(Blocks.joined([block]))
    else:
        with pytest.raises(ValueError):
            check_blocks(Blocks.joined([block]))


def test_the_forging_helper_does_not_change_an_intact_file(plain: Path) -> None:
    for path in _tables(plain):
        assert ForgedTable(path.read_bytes()).sealed() == path.read_bytes()


@pytest.mark.parametrize(
    "value", [bytes(LARGEST_VALUE), random.Random(1).randbytes(LARGEST_VALUE)], ids=["compressed", "not compressed"]
)
def test_the_largest_entry_that_settings_permit_is_accepted_in_100_mb(value: bytes, tmp_path: Path) -> None:
    key = b"\0\1" + b"k" * 2 * LARGEST_KEY
    write_store(tmp_path / "store", {key: value}, DBCompressionType.lz4())
    path = _tables(tmp_path / "store")[0]
    program = (
        "import re, sys\n"
        "from pathlib import Path\n"
        "from stateflow.state.backends.rocksdb.tables import check_table_file, key_bounds\n"
        "def peak():\n"
        "    return int(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])\n"
        "before, path = peak(), Path(sys.argv[1])\n"
        "check_table_file(path)\n"
        "print(peak() - before, key_bounds(path)[1][:-8] == b'\\0\\1' + b'k' * int(sys.argv[2]), peak() - before)"
    )
    command = [sys.executable, "-c", program, str(path), str(2 * LARGEST_KEY)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    checked_kb, is_right, all_kb = ended.stdout.split()
    assert is_right == "True" and int(checked_kb) <= int(all_kb) < LARGEST_MEMORY_KB
