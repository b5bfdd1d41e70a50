"""The guide about testing a new version: its commands are typed against the flights, with a version that is wrong."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

import pytest

from stateflow.runtime.task import store_cache
from tests.docs.pages import blocks, load_module, read
from tests.support import local_flights
from tests.support.cli_fixture import invoke

GUIDE = read("test-a-new-version")
WRONG = ("            self.total += delay\n", "            self.total += max(delay, 0.0)\n")
"""In version 2, flights that are early have no part in the mean."""


class Shell:
    """A user who follows the guide; its absolute paths are below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("opt/jobs/v2", "data/flights"):
            (folder / name).mkdir(parents=True)
        (folder / "opt/jobs/flights.py").write_text(local_flights.job_text())
        (folder / "opt/jobs/v2/flights.py").write_text(local_flights.job_text(WRONG))
        (folder / "opt/jobs/flights.toml").write_text(
            f'local_dir = "{folder}/local"\n[job]\nflights = "{folder}/data/flights"\ntables = "{folder}/data/tables"\n'
        )
        self.names = {name: self.here(path) for name, path in re.findall(r"^export (\w+)=(\S+)", GUIDE, re.MULTILINE)}
        self._staged = local_flights.stage(folder / "staging")

    def here(self, text: str) -> str:
        return re.sub(r"(?<![\w.])/(?=(data|opt)/)", f"{self.folder}/", text)

    def deliver(self, files: int) -> None:
        """Makes that many files be there."""
        for file in self._staged[:files]:
            if file.exists():
                file.rename(self.folder / "data/flights" / file.name)

    def type(self, block: str, *more: str) -> str:
        """Types the commands of a block; returns what they print."""
        printed = ""
        for line in block.splitlines():
            words = shlex.split(Template(line).substitute(self.names))
            done = invoke(*words[1:], *more)
            assert done.exit_code == 0, f"{words}\n{done.output}"
            printed += done.stdout
        return printed


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    yield Shell(tmp_path)
    store_cache.close_all()


@pytest.mark.slow(reason="runs the commands of a guide in processes of their own")
def test_the_commands_of_the_guide_find_the_keys_that_a_wrong_version_has_changed(shell: Shell) -> None:
    _, fork, runs, compare, keys, since, clean_up = blocks(GUIDE)
    shell.deliver(1)
    shell.type(runs.splitlines()[0])
    shell.type(fork)
    shell.deliver(2)
    shell.type(runs)
    found: dict[str, Any] = json.loads(shell.type(compare, "--json"))
    by_operator = {state["operator"]: state for state in found["states"]}
    assert {uid: (state["added"], state["removed"]) for uid, state in by_operator.items()} == {
        "running-delay": (0, 0),
        "route-delay": (0, 0),
    }
    flights = [row for file in sorted((shell.folder / "data/flights").iterdir()) for row in local_flights.rows_of(file)]
    # The savepoint has the first file's statistics from before the change.
    early = {row["tailnum"] for row in flights[1000:] if (row["arr_delay"] or 0) < 0}
    assert by_operator["running-delay"]["changed"] == len(early) == _listed(shell, keys)
    changed = json.loads(shell.type(since, "--json"))["states"]
    touched = {row["tailnum"] for row in flights[1000:]}
    known = {row["tailnum"] for row in flights[:1000]}
    one = next(state for state in changed if state["operator"] == "running-delay")
    assert (one["added"], one["changed"]) == (len(touched - known), len(touched & known))
    assert one["new_keys"] == len(touched | known)
    _check_python(shell, len(early))
    shell.type(clean_up)


def _listed(shell: Shell, keys: str) -> int:
    printed = shell.type(keys)
    assert len(re.findall(r"^~ running-delay\.stats ", printed, re.MULTILINE)) == 5
    more = re.search(r"^(\d+) keys more", printed, re.MULTILINE)
    assert more is not None, printed
    return int(more[1]) + 5


def _check_python(shell: Shell, changed: int) -> None:
    """The blocks in Python find the same keys, and that of Airflow makes a DAG."""
    *python, airflow = blocks(GUIDE, "python")
    found = load_module(shell.folder / "compared.py", shell.here("\n".join(python)))
    assert len(found.changed) == len(found.stats) == changed
    assert len(found.largest) == 3 and found.largest["by"].min() > 0
    assert set(found.changed.columns) >= {"operator", "state", "change", "key", "old", "new"}
    dag = load_module(shell.folder / "validation_dag.py", airflow).dag
    assert dag.task_dict["compare"].upstream_task_ids == {"shadow"}
