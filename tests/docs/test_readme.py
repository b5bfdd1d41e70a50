"""The README and the first steps: every command exists, and the examples run as they are written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from stateflow.cli.main import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FIRST_STEPS = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")
STARS = "import json, sys; print(json.dumps(sys.argv[1:]))"


def _blocks(page: str, section: str, language: str = "") -> list[str]:
    body = re.search(rf"^## {section}$(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    assert body, section
    return _fenced(body[1], language)


def _fenced(text: str, language: str) -> list[str]:
    # All of them at once: the end of one block looks like the beginning of another.
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for found, block in blocks if found == language]


class Checkout:
    """What the example meets after `make demo`: an environment, the job, some flights."""

    def __init__(self, folder: Path, program: str) -> None:
        self.folder = folder
        command = folder / ".venv" / "bin" / "stateflow"
        command.parent.mkdir(parents=True)
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" {program} "$@"\n')
        command.chmod(0o755)
        (folder / ".venv" / "java_home").write_text(os.environ.get("JAVA_HOME", ""))
        (folder / "dags").symlink_to(ROOT / "dags")

    def deliver(self, files: int, rows: int) -> None:
        """A few flights in the demo's landing folder."""
        landing = self.folder / ".demo" / "landing"
        landing.mkdir(parents=True)
        schema = pa.schema(
            [
                ("tailnum", pa.string()),
                ("carrier", pa.string()),
                ("origin", pa.string()),
                ("dest", pa.string()),
                ("flight", pa.int64()),
                ("time", pa.timestamp("us")),
                ("arr_delay", pa.float64()),
            ]
        )
        for day in range(1, files + 1):
            flights = [
                {
                    "tailnum": f"N{n % 3}",
                    "carrier": "UA",
                    "origin": "EWR",
                    "dest": "IAH",
                    "flight": n,
                    "time": datetime(2013, 1, day, n),  # noqa: DTZ001
                    "arr_delay": float(n),
                }
                for n in range(rows)
            ]
            pq.write_table(pa.Table.from_pylist(flights, schema), landing / f"{day}.parquet")

    def type(self, text: str) -> list[str]:
        """What a shell prints for these lines."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            ["bash", "-euc", text], cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.splitlines()


def test_each_command_of_the_example_can_be_parsed(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, f"-c '{STARS}'")
    _, example = _blocks(FIRST_STEPS, "Run a job")
    calls = [json.loads(line) for line in checkout.type(example)]
    assert [call[0] for call in calls] == ["run", "status", "gc"]
    for name, *arguments in calls:
        main.commands[name].make_context(name, arguments)
    job = calls[0][1]
    assert (ROOT / job).is_file()
    given = {value.partition("=")[0] for value in calls[0] if value.startswith("job.")}
    assert given == {f"job.{name}" for name in re.findall(r'parameter\("(\w+)"\)', (ROOT / job).read_text())}


def test_the_demo_leaves_its_flights_where_the_example_looks() -> None:
    layout = (ROOT / "scripts" / "flights_demo" / "layout.py").read_text()
    assert 'REPOSITORY / ".demo"' in layout and 'self.root / "landing"' in layout
    assert 'job.flights="$PWD/.demo/landing"' in FIRST_STEPS


def test_each_make_target_and_file_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|^)make ([a-z-]+)", README + FIRST_STEPS, re.MULTILINE)) <= targets
    for page in (README, FIRST_STEPS):
        (pip,) = _blocks(page, "Install")
        (file,) = re.findall(r"pip install -r (\S+)", pip)
        assert (ROOT / file).is_file() and re.search(r"^pip install --no-deps \.", pip, re.MULTILINE)


def test_every_extra_is_described() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (table,) = re.findall(r"^\| extra \|.*?\n\n", FIRST_STEPS, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`([a-z0-9]+)`(?=[^|]*\|[^|]*\|[^|]*\|$)", table, re.MULTILINE)) >= set(extras)


def test_the_quickstart_is_short() -> None:
    (example,) = _blocks(README, "Quickstart", "bash")
    assert len(example.splitlines()) <= 30


@pytest.mark.slow
@pytest.mark.spark
def test_the_quickstart_works_as_it_is_written(tmp_path: Path) -> None:
    (example,) = _blocks(README, "Quickstart", "bash")
    checkout = Checkout(tmp_path, "-m stateflow")
    checkout.type(f'export PATH="$PWD/.venv/bin:$PATH"\n{example}')
    rows = DeltaTable(tmp_path / "totals").to_pyarrow_table().to_pylist()
    assert rows == [{"customer": "ann", "amount": 3.0}]
    (tmp_path / "orders" / "2.json").write_text('{"customer": "ann", "amount": 4}')
    checkout.type('export PATH="$PWD/.venv/bin:$PATH"\nstateflow run job.py --job-root root')
    rows = DeltaTable(tmp_path / "totals").to_pyarrow_table().to_pylist()
    assert sorted(row["amount"] for row in rows) == [3.0, 7.0]


@pytest.mark.slow
@pytest.mark.spark
def test_the_example_works_as_it_is_written(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, "-m stateflow")
    checkout.deliver(files=14, rows=5)
    _, example = _blocks(FIRST_STEPS, "Run a job")
    look = '.venv/bin/stateflow status --job-root "$PWD/.demo/mine/job" --json'
    checkout.type(example)
    (status,) = map(json.loads, checkout.type(look))
    batches = sorted((each["checkpoint_id"], each["rows_in"]) for each in status["checkpoints"])
    assert (status["job"], status["checkpoint_id"], batches) == ("flights", 3, [(2, 60), (3, 10)])
    delays = DeltaTable(tmp_path / ".demo" / "mine" / "tables" / "delays").to_pyarrow_table().to_pylist()
    assert Counter(row["time"].day for row in delays) == dict.fromkeys(range(1, 15), 5)
    checkout.type(example)
    (again,) = map(json.loads, checkout.type(look))
    assert again["checkpoints"] == status["checkpoints"] and again["generation"] > status["generation"]
