"""Savepoints with random changes and right hashes; every command still finds a whole one in the same job root."""

from __future__ import annotations

import copy
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stateflow.checkpoint.savepoints.catalog import find_savepoint, list_savepoints, savepoint_at
from stateflow.errors import StateflowError
from stateflow.operations import SavepointRequest, create_savepoint
from stateflow.storage import PosixStorage
from tests.support import root_files
from tests.support.cli_fixture import CliFixture

_VALUES: list[Any] = [None, True, -1, 2**63, 2**70, "", "x", "../../x", "\x1b[2J", "a" * 300, [], {}, [[]], "²", 1.5]


@pytest.fixture
def saved(ran: CliFixture) -> tuple[PosixStorage, Path]:
    """A storage with two savepoints, and the document of the second."""
    for name in ("whole", "broken"):
        create_savepoint(ran.root, SavepointRequest(name, from_head=True))
    (document,) = Path(ran.root).glob("savepoints/broken-*/_savepoint")
    return PosixStorage(ran.root), document


def _damage(rng: random.Random, document: Any) -> Any:
    """A copy with one value replaced, removed or added somewhere."""
    changed = copy.deepcopy(document)
    place: Any = changed
    while isinstance(place, dict | list) and place:
        key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
        if rng.random() < 0.4 or not isinstance(place[key], dict | list) or not place[key]:
            if rng.random() < 0.2:
                del place[key]
            else:
                place[key] = rng.choice(_VALUES)
            return changed
        place = place[key]
    return changed


def _random_savepoint(rng: random.Random, document: Any, data: bytes) -> bytes:
    kind = rng.randrange(10)
    if kind == 0:
        return data[: rng.randrange(len(data))]
    if kind == 1:
        at = rng.randrange(len(data))
        return data[:at] + rng.randbytes(3) + data[at + 3 :]
    changed = document
    for _ in range(rng.randrange(1, 4)):
        changed = _damage(rng, changed)
    return root_files.sealed(changed)


@pytest.mark.parametrize("inputs", [300, pytest.param(100_000, marks=pytest.mark.slow)])
def test_a_random_savepoint_is_read_or_an_error_with_a_code(saved: tuple[PosixStorage, Path], inputs: int) -> None:
    storage, path = saved
    rng, data = random.Random(inputs), path.read_bytes()
    document, _ = root_files.unsealed(data)
    refused = 0
    for _ in range(inputs):
        path.write_bytes(_random_savepoint(rng, document, data))
        started = time.process_time()
        assert "whole" in [s.document.name for s in list_savepoints(storage)]
        found = find_savepoint(storage, "whole")
        assert found is not None and found.document.name == "whole"
        try:
            savepoint_at(str(path)).verify()
        except StateflowError as e:
            assert e.code in ("corrupt-file", "missing-file", "config", "data", "storage")
            refused += 1
        assert time.process_time() - started < 2
    assert refused > inputs // 4


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
