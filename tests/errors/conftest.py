"""The small job in a fresh folder, and one that has run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from stateflow.runtime.task import store_cache
from tests.support.cli_fixture import CliFixture


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the job ran once."""
    bench = CliFixture(tmp_path_factory.mktemp("finished"))
    bench.run()
    return bench.folder


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[CliFixture]:
    yield CliFixture(tmp_path)
    store_cache.close_all()


@pytest.fixture
def ran(finished: Path, bench: CliFixture) -> CliFixture:
    shutil.copytree(finished, bench.folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("code"))
    return bench
