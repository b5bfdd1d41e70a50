"""The small job in a fresh folder, and one that has run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.cli_fixture import CliFixture


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the job ran once."""
    bench = CliFixture(tmp_path_factory.mktemp("finished"))
    bench.run()
    return bench.folder


@pytest.fixture
def bench(tmp_path: Path) -> CliFixture:
    return CliFixture(tmp_path)


@pytest.fixture
def ran(tmp_path: Path, finished: Path) -> CliFixture:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("code"))
    return CliFixture(tmp_path)
