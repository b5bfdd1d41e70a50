"""The fuzz targets for RocksDB stores: their manifests and their data files."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from stateflow.errors import CorruptFile
from stateflow.state.backends.rocksdb.check import with_exact_bounds
from stateflow.state.backends.rocksdb.manifest import (
    StoreManifest,
    compose,
    fragments_of,
    parse,
    read_records,
    write_manifest,
)
from stateflow.state.backends.rocksdb.tables import check_table_file
from tests.fuzz.mutations import changed_bytes
from tests.fuzz.table_use import StoreSamples
from tests.fuzz.target import Target
from tests.support.table_files import ATTACKS, ForgedTable

# -- manifests --------------------------------------------------------------------------------------------------------

_NUMBERS = [0, 1, 6, 7, 255, 1 << 31, 1 << 55, (1 << 55) + 1, (1 << 62) - 1, 1 << 62, 1 << 63, (1 << 64) - 1]


@contextmanager
def store_manifest(folder: Path) -> Iterator[Target]:
    """Changes manifests, and opens those that are accepted with the data files that belong to them."""
    store = folder / "store"
    data = _manifest_of(store)
    known = parse(data, "m")
    intact, names = [data, compose(known)], {file.name for file in known.files}
    samples = StoreSamples(folder / "forged-manifest")

    def mutate(rng: random.Random) -> bytes:
        data = rng.choice(intact)
        kind = rng.random()
        if kind < 0.05:
            return changed_bytes(rng, data, intact)
        if kind < 0.4:
            return compose(_changed_fields(rng, known))
        return b"".join(
            fragment
            for record in read_records(data, 0)
            for fragment in fragments_of(changed_bytes(rng, record, intact) if rng.random() < 0.5 else record)
        )

    def lay_out(target: Path, manifest: StoreManifest) -> None:
        for name in names:
            os.link(store / name, target / name)
        files = tuple(with_exact_bounds(file, target / file.name) for file in manifest.files)
        write_manifest(target, replace(manifest, files=files))

    def read(data: bytes) -> None:
        manifest = parse(data, "m")
        _check_numbers(manifest)
        assert parse(compose(manifest), "m") == manifest
        if {file.name for file in manifest.files} <= names:
            samples.add(lambda target: lay_out(target, manifest))

    yield Target(mutate, read, samples.use)


def _manifest_of(store: Path) -> bytes:
    (path,) = store.glob("MANIFEST-*")
    return path.read_bytes()


def _changed_fields(rng: random.Random, manifest: StoreManifest) -> StoreManifest:
    """Returns the manifest with one to three other numbers or bounds."""
    files = list(manifest.files)
    for _ in range(rng.choice([1, 1, 2, 3])):
        at = rng.randrange(len(files))
        file, bounds = files[at], [files[at].smallest, files[at].largest]
        number = rng.choice(_NUMBERS)
        changes: list[dict[str, Any]] = [
            {rng.choice(["level", "number", "size", "epoch"]): number},
            {"level": rng.randrange(8)},
            {"epoch": rng.choice([0, 1, 2, 3])},
            {"sequences": rng.choice([(number, file.sequences[1]), (file.sequences[0], number), (number, number)])},
            {rng.choice(["smallest", "largest"]): changed_bytes(rng, rng.choice(bounds), bounds)},
            {"smallest": file.largest, "largest": file.smallest},
            {"prefixes": (rng.random() < 0.5, rng.random() < 0.5)},
            {"details": ((rng.randrange(1, 64), changed_bytes(rng, b"\1", bounds)),)},
        ]
        files[at] = replace(file, **rng.choice(changes))
    last = rng.choice(_NUMBERS) if rng.random() < 0.1 else manifest.last_sequence
    return StoreManifest(tuple(files), last)


def _check_numbers(manifest: StoreManifest) -> None:
    """What RocksDB does not check, or adds to without a check."""
    assert 0 <= manifest.last_sequence <= 1 << 55, manifest
    assert len({file.number for file in manifest.files}) == len(manifest.files), manifest
    for file in manifest.files:
        assert file.level in range(7) and 0 < file.number < 1 << 62 and 0 < file.size < 1 << 62, file
        assert min(len(file.smallest), len(file.largest)) >= 8 and file.smallest[:-8] <= file.largest[:-8], file
        assert 0 <= file.sequences[0] <= file.sequences[1] <= 1 << 55 and 0 <= file.epoch < 1 << 62, file
        assert file.groups.first >= 0, file


# -- data files -------------------------------------------------------------------------------------------------------


@contextmanager
def table_file(folder: Path) -> Iterator[Target]:
    """Changes data files; opens and uses stores with files that pass the check. Known attacks must not pass it."""
    paths = [path for name in ("store", "lz4", "loaded") for path in sorted((folder / name).glob("*.sst"))]
    tables = {path: ForgedTable(path.read_bytes()) for path in paths}
    plain = paths[0]
    samples = StoreSamples(folder / "forged-table")
    attacks = itertools.cycle(ATTACKS)
    checked = folder / "table.sst"

    def mutate(rng: random.Random) -> tuple[Path, bytes, str]:
        """Returns which file is changed, its bytes, and the name of the attack that must not pass."""
        kind = rng.random()
        if kind < 0.12:
            attack, table = next(attacks), tables[plain].copied()
            attack(table)
            return plain, table.sealed(), attack.__name__
        path = rng.choice(paths)
        data = bytes(tables[path].data)
        return path, changed_bytes(rng, data, [data]) if kind < 0.2 else _changed_table(rng, tables[path]), ""

    def read(given: tuple[Path, bytes, str]) -> None:
        path, data, attack = given
        checked.write_bytes(data)
        try:
            check_table_file(checked)
        except ValueError as e:
            raise CorruptFile(str(e)) from e
        assert not attack, attack
        samples.add(lambda target: _lay_out(target, path, data))

    yield Target(mutate, read, samples.use)


def _changed_table(rng: random.Random, intact: ForgedTable) -> bytes:
    """Returns a data file with one to four changes of its blocks, with checksums that fit."""
    table = intact.copied()
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        block = rng.choice(table.blocks)
        near_end = rng.random() < 0.4
        at = max(0, block.size - rng.randrange(40)) if near_end else rng.randrange(block.size + 1)
        table.change(block, at, bytes([rng.choice([0, 1, 8, 127, 128, 255, rng.randrange(256)])]))
    return table.sealed()


def _lay_out(target: Path, path: Path, data: bytes) -> None:
    """Writes a store with other bytes of one of its data files, whose size the manifest has."""
    manifest = parse(_manifest_of(path.parent), "m")
    for file in manifest.files:
        if file.name != path.name:
            os.link(path.parent / file.name, target / file.name)
    (target / path.name).write_bytes(data)
    files = tuple(replace(file, size=(target / file.name).stat().st_size) for file in manifest.files)
    write_manifest(target, replace(manifest, files=files))
