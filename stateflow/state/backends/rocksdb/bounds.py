"""Bounds of data files: prefixes in stored manifests, exact in the manifests that RocksDB opens.

A manifest names the smallest and the largest key of each data file, and every checkpoint contains it. So a key of 1 MB
would be in every checkpoint, several times. A long bound is stored as a prefix, from which the key groups are known,
and read from the data file when the store is laid out to be opened.

A bound can also be the end of a deleted range, cut where the next file begins. The file itself does not contain that
end. So a bound is only stored as a prefix if it is exactly what will be read from the file.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from stateflow.state.backends.rocksdb.manifest import StoreFile, StoreManifest
from stateflow.state.backends.rocksdb.tables.file import key_bounds

LONGEST_BOUND = 64
"""Bytes of a stored bound without its trailer."""
_TRAILER = 8


class BoundsShortener:
    """Shortens the bounds of one open store's files; reads each file with long bounds once.

    Args:
        folder: folder of the store.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[StoreFile, StoreFile] = {}

    def shorten(self, manifest: StoreManifest) -> StoreManifest:
        """Returns the manifest to store.

        Raises:
            ValueError: a file is damaged; the message begins with its name.
        """
        self._known = {
            file: self._known.get(file) or with_prefixes(file, self._folder / file.name)
            for file in manifest.files
            if _is_long(file.smallest) or _is_long(file.largest)
        }
        return dataclasses.replace(manifest, files=tuple(self._known.get(file, file) for file in manifest.files))


def with_prefixes(file: StoreFile, path: Path) -> StoreFile:
    """Returns a file with prefixes for its long bounds, as far as the data file at `path` has the exact ones.

    Raises:
        ValueError: the data file is damaged; the message begins with its name.
    """
    found = _read(path)
    if found is None:
        return file
    can_shorten = [_is_long(bound) and bound == exact for bound, exact in zip(_bounds(file), found, strict=True)]
    smallest, largest = (
        bound[:LONGEST_BOUND] + bound[-_TRAILER:] if can else bound
        for can, bound in zip(can_shorten, _bounds(file), strict=True)
    )
    return dataclasses.replace(file, smallest=smallest, largest=largest, prefixes=(can_shorten[0], can_shorten[1]))


def with_exact_bounds(file: StoreFile, path: Path) -> StoreFile:
    """Returns a file of a stored manifest with the bounds that RocksDB needs, from the data file at `path`.

    Raises:
        ValueError: the data file is damaged, or its bounds do not begin with the stored prefixes; the message begins
            with its name.
    """
    if not any(file.prefixes):
        return file
    found = _read(path)
    exact = []
    for number, (is_prefix, bound) in enumerate(zip(file.prefixes, _bounds(file), strict=True)):
        if not is_prefix:
            exact.append(bound)
        elif found is not None and _is_prefix_of(bound, found[number]):
            exact.append(found[number])
        else:
            raise ValueError(f"{path.name}: its keys do not begin with the stored bounds")
    if exact[0][:-_TRAILER] > exact[1][:-_TRAILER]:
        raise ValueError(f"{path.name}: its keys are not in order")
    return dataclasses.replace(file, smallest=exact[0], largest=exact[1], prefixes=(False, False))


def _read(path: Path) -> tuple[bytes, bytes] | None:
    try:
        return key_bounds(path)
    except ValueError as e:
        raise ValueError(f"{path.name}: {e}") from e


def _bounds(file: StoreFile) -> tuple[bytes, bytes]:
    return file.smallest, file.largest


def _is_long(bound: bytes) -> bool:
    return len(bound) > LONGEST_BOUND + _TRAILER


def _is_prefix_of(stored: bytes, exact: bytes) -> bool:
    key, trailer = exact[:-_TRAILER], exact[-_TRAILER:]
    return key.startswith(stored[:-_TRAILER]) and trailer == stored[-_TRAILER:]
