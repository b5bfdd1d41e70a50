"""Real files for the fuzz targets to change: a job root with checkpoints and savepoints, a Delta table, a store."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

from rocksdict import DBCompressionType

from stateflow.connectors import DeltaSink
from stateflow.operations import SavepointRequest, create_savepoint
from tests.fuzz.table_use import KEYS
from tests.support.cli_fixture import CliFixture
from tests.support.delta_tables import context, pairs, put
from tests.support.table_files import write_loaded_store, write_store


def make_corpus(folder: Path) -> None:
    """Fills the folder with ``root``, ``delta``, and stores: ``store`` without compression, ``lz4`` with it, ``loaded``
    with a file that was loaded and that LZ4 cannot compress."""
    job = CliFixture(folder)
    job.run()
    create_savepoint(job.root, SavepointRequest(name="sp", from_head=True))
    sink, about = DeltaSink(folder / "delta"), context()
    sink.prepare(about)
    for number in range(1, 4):
        put(sink, about, number, pairs(number * 3, number * 3 + 3))
    make_store(folder / "store", DBCompressionType.none())
    make_store(folder / "lz4", DBCompressionType.lz4())
    rng = random.Random(1)
    write_loaded_store(folder / "loaded", {key: rng.randbytes(number * 7 % 300) for number, key in enumerate(KEYS)})


def make_store(folder: Path, compression: DBCompressionType, more: Mapping[bytes, bytes] | None = None) -> None:
    """Writes a store with entries in one file, and a deleted range in another.

    Args:
        more: further entries.
    """
    entries = {key: bytes(number * 7 % 300) for number, key in enumerate(KEYS)}
    write_store(folder, entries | dict(more or {}), compression)
