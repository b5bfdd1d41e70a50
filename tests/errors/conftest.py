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
    cli = CliFixture(tmp_path_factory.mktemp("finished"))
    cli.run()
    return cli.folder


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[CliFixture]:
    yield CliFixture(tmp_path)
    store_cache.close_all()


@pytest.fixture
def ran(finished: Path, cli: CliFixture) -> CliFixture:
    shutil.copytree(finished, cli.folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("code"))
    return cli
