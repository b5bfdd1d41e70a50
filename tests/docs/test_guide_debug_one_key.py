"""The guide about debugging one key: its commands are typed against the flights, and print what the guide shows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

import pytest

from stateflow.runtime.task import store_cache
from tests.docs.pages import blocks, read
from tests.support import local_flights
from tests.support.cli_fixture import invoke
from tests.support.job_fixture import Row

GUIDE = read("debug-one-key")
LIST, REPLAY, KEY, DEBUG = blocks(GUIDE)


class Walk:
    """A user who follows the guide; its absolute paths are below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("opt/jobs", "data/flights"):
            (folder / name).mkdir(parents=True)
        (folder / "opt/jobs/flights.py").write_text(local_flights.job_text())
        (folder / "opt/jobs/flights.toml").write_text(
            f'local_dir = "{folder}/local"\n[checkpoints]\nasynchronous = false\n[job]\n'
            f'flights = "{folder}/data/flights"\ntables = "{folder}/data/tables"\n'
        )
        exported = re.findall(r"(\w+)=(\S+)", blocks(GUIDE, "bash")[0])
        self.names = {name: f"{folder}{path}" for name, path in exported}
        for file in local_flights.stage(folder / "staging"):
            file.rename(folder / "data/flights" / file.name)

    def words(self, command: str) -> list[str]:
        return shlex.split(Template(command).substitute(self.names))[1:]

    def type(self, command: str) -> str:
        ended = invoke(*self.words(command))
        assert ended.exit_code == 0, ended.output
        return ended.stdout


@pytest.fixture
def walk(tmp_path: Path) -> Iterator[Walk]:
    walk = Walk(tmp_path)
    walk.type('stateflow run "$JOB" --job-root "$ROOT" --config "$SETTINGS"')
    yield walk
    store_cache.close_all()


def test_the_commands_of_the_guide_show_the_batch_and_the_key(walk: Walk) -> None:
    assert "yes" in walk.type(LIST)
    shown = walk.type(REPLAY)
    assert shown.splitlines()[-1].endswith("checkpoint 4"), shown
    (key,) = blocks(GUIDE, "text")
    assert key in walk.type(KEY)
    (code,) = blocks(GUIDE, "python")
    names: dict[str, Any] = {}
    exec(re.sub(r'"(?=/(opt|data)/)', f'"{walk.folder}', code), names)
    (found,) = names["report"].keys
    assert [len(call.emitted) for call in found.calls] == [1, 1]


def test_the_debugger_of_the_guide_has_the_row_and_the_state_of_that_time(walk: Walk) -> None:
    (typed,) = blocks(GUIDE, "pdb")
    command = [sys.executable, "-m", "stateflow", *walk.words(DEBUG)]
    path = os.pathsep.join(sys.path)
    ended = subprocess.run(
        command, input=typed, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    answers = [line.removeprefix("(Pdb) ") for line in ended.stdout.splitlines() if line.startswith("(Pdb) ")]
    flight, before = answers[:2]
    rows: list[Row] = local_flights.rows_of(sorted((walk.folder / "data/flights").iterdir())[2])
    first = min((row for row in rows if row["tailnum"] == "N579JB"), key=lambda row: row["time"])
    assert int(flight) == first["flight"]
    assert "flights=3" in before
