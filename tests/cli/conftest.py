"""A job file in a folder, for every command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stateflow.runtime.task import store_cache
from tests.support.cli_fixture import CliFixture


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[CliFixture]:
    """A small job without Spark, whose checkpoints are synchronous: each batch has its own."""
    cli = CliFixture(tmp_path)
    cli.settings["checkpoints.asynchronous"] = "no"
    yield cli
    store_cache.close_all()
