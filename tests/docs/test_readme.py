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

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from stateflow.cli.main import main
from tests.docs.pages import ROOT, blocks, read, section

README, FIRST_STEPS = read("README.md"), read("docs/getting-started.md")
PRINT_ARGUMENTS = "-c 'import json, sys; print(json.dumps(sys.argv[1:]))'"
FLIGHT = pa.schema(
    [(name, pa.string()) for name in ("tailnum", "carrier", "origin", "dest")]
    + [("flight", pa.int64()), ("time", pa.timestamp("us")), ("arr_delay", pa.float64())]
)


class Checkout:
    """A folder after `make demo`, as the examples expect it: an environment and the job."""

    def __init__(self, folder: Path, program: str = "-m stateflow") -> None:
        self.folder = folder
        command = folder / ".venv" / "bin" / "stateflow"
        command.parent.mkdir(parents=True)
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" {program} "$@"\n')
        command.chmod(0o755)
        (folder / ".venv" / "java_home").write_text(os.environ.get("JAVA_HOME", ""))
        (folder / "dags").symlink_to(ROOT / "dags")

    def deliver(self, files: int, rows: int) -> None:
        """Writes flights into the demo's landing folder, a day per file."""
        landing = self.folder / ".demo" / "landing"
        landing.mkdir(parents=True)
        for day in range(1, files + 1):
            times = [datetime(2013, 1, day, n) for n in range(rows)]  # noqa: DTZ001
            flights = [(f"N{n % 3}", "UA", "EWR", "IAH", n, times[n], float(n)) for n in range(rows)]
            named = [dict(zip(FLIGHT.names, flight, strict=True)) for flight in flights]
            pq.write_table(pa.Table.from_pylist(named, FLIGHT), landing / f"{day}.parquet")

    def type(self, text: str) -> list[str]:
        """The lines that a shell prints."""
        path = f"{self.folder / '.venv' / 'bin'}:{os.environ['PATH']}"
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": path}
        command = ["bash", "-euc", text]
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.splitlines()

    def rows(self, table: str) -> list[dict[str, object]]:
        found: list[dict[str, object]] = DeltaTable(self.folder / table).to_pyarrow_table().to_pylist()
        return found


def test_each_command_of_the_example_can_be_parsed(tmp_path: Path) -> None:
    _, example = blocks(section(FIRST_STEPS, "Run a job"))
    calls = [json.loads(line) for line in Checkout(tmp_path, PRINT_ARGUMENTS).type(example)]
    assert [call[0] for call in calls] == ["run", "status", "gc"]
    for name, *arguments in calls:
        # With the parent: a command keeps the help option that it is first asked for, also in later tests.
        main.commands[name].make_context(name, arguments, parent=click.Context(main, **main.context_settings))
    job = calls[0][1]
    given = {value.partition("=")[0] for value in calls[0] if value.startswith("job.")}
    assert given == {f"job.{name}" for name in re.findall(r'parameter\("(\w+)"\)', read(job))}
    layout = read("scripts/flights_demo/layout.py")
    assert 'REPOSITORY / ".demo"' in layout and 'self.root / "landing"' in layout
    assert 'job.flights="$PWD/.demo/landing"' in FIRST_STEPS


def test_each_make_target_file_and_extra_exists_and_is_described() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|^)make ([a-z-]+)", README + FIRST_STEPS, re.MULTILINE)) <= targets
    for page in (README, FIRST_STEPS):
        (pip,) = blocks(section(page, "Install"))
        (file,) = re.findall(r"pip install -r (\S+)", pip)
        assert (ROOT / file).is_file() and re.search(r"^pip install --no-deps \.", pip, re.MULTILINE)
    extras = tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"]
    (table,) = re.findall(r"^\| extra \|.*?\n\n", FIRST_STEPS, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`([a-z0-9]+)`(?=[^|]*\|[^|]*\|[^|]*\|$)", table, re.MULTILINE)) >= set(extras)


@pytest.mark.slow
@pytest.mark.spark
def test_the_quickstart_works_as_written(tmp_path: Path) -> None:
    (example,) = blocks(section(README, "Quickstart"), "bash")
    assert len(example.splitlines()) <= 30
    checkout = Checkout(tmp_path)
    checkout.type(example)
    assert checkout.rows("totals") == [{"customer": "ann", "amount": 3.0}]
    (tmp_path / "orders" / "2.json").write_text('{"customer": "ann", "amount": 4}')
    checkout.type("stateflow run job.py --job-root root")
    assert Counter(row["amount"] for row in checkout.rows("totals")) == Counter([3.0, 7.0])


@pytest.mark.slow
@pytest.mark.spark
def test_the_example_of_the_first_steps_works_as_written(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path)
    checkout.deliver(files=14, rows=5)
    _, example = blocks(section(FIRST_STEPS, "Run a job"))
    look = '.venv/bin/stateflow status --job-root "$PWD/.demo/mine/job" --json'
    checkout.type(example)
    (status,) = map(json.loads, checkout.type(look))
    batches = sorted((each["checkpoint_id"], each["rows_in"]) for each in status["checkpoints"])
    assert (status["job"], status["checkpoint_id"], batches) == ("flights", 3, [(2, 60), (3, 10)])
    days = [row["time"] for row in checkout.rows(".demo/mine/tables/delays")]
    assert Counter(time.day for time in days if isinstance(time, datetime)) == dict.fromkeys(range(1, 15), 5)
    checkout.type(example)
    (again,) = map(json.loads, checkout.type(look))
    # Without new input, the second run ends before it claims the job.
    assert again["checkpoints"] == status["checkpoints"] and again["generation"] == status["generation"]
