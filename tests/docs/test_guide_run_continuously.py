"""The guide about jobs that stay up: its settings are accepted, its commands start and stop a run."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stateflow import WatermarkStrategy
from stateflow.config.sources import resolve
from stateflow.testing.sinks import FolderSink
from tests.docs.pages import blocks, code, read, rows
from tests.support.job_fixture import SLICE, AccountsJob
from tests.support.processes import wait_for

GUIDE = read("run-continuously")
START, STOP = (shlex.split(block) for block in blocks(GUIDE))

NO_VALUES = ("run.until", "payments_savepoint")
"""Code in the first columns of tables that is no value of ``run.until``."""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[AccountsJob]:
    job = AccountsJob(tmp_path)
    yield job
    job.end_all()


def _published(job: AccountsJob) -> int:
    table = job.table("movements")
    # The folder of the versions is created before the first of them.
    return len(FolderSink(table).rows()) if any((table / "versions").glob("*")) else 0


def test_every_setting_of_the_guide_is_accepted() -> None:
    for block in blocks(GUIDE, "toml"):
        resolve(_flat(tomllib.loads(block)))
    first_cells = [cell for row in rows(GUIDE) for cell in code(row[0]) if cell not in NO_VALUES]
    assert [resolve({"run.until": cell}).run.end.continuous for cell in first_cells] == [False, *[True] * 5]


def _flat(table: Mapping[str, Any]) -> dict[str, object]:
    return {f"{group}.{name}": value for group, values in table.items() for name, value in values.items()}


def test_the_strategy_of_the_guide_has_an_idleness() -> None:
    names: dict[str, Any] = {"WatermarkStrategy": WatermarkStrategy, "timedelta": timedelta}
    (block,) = [block for block in blocks(GUIDE, "python") if "Watermark" in block]
    exec(block, names)
    assert names["strategy"].idleness == 60_000


@pytest.mark.slow(reason="waits for a run in a process of its own")
def test_the_commands_of_the_guide_start_a_run_and_stop_it_after_what_arrived_later(job: AccountsJob) -> None:
    job.deliver(2 * SLICE, (SLICE, {"pause": "gate"}))
    name, _, value = START[-1].partition("=")
    settings: dict[str, Any] = {name.replace(".", "__"): value}
    run = job.start(**settings)
    wait_for(lambda: _published(job) == SLICE, lambda: str(run))
    (job.folder / "gate").touch()
    wait_for(lambda: _published(job) == 2 * SLICE, lambda: str(run))
    job.command(STOP[1]).check()
    assert run.wait().check().result["stopped_because"] == "stopped"
    job.check()
