"""What the README tells a stranger to type: every command is one, and the example runs as it stands there."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections import Counter
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from stateflow.cli import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
STARS = "import json, sys; print(json.dumps(sys.argv[1:]))"


def _blocks(section: str, language: str = "") -> list[str]:
    body = re.search(rf"^## {section}$(.*?)^## ", README, re.MULTILINE | re.DOTALL)
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
        schema = pa.schema([
            ("tailnum", pa.string()), ("carrier", pa.string()), ("origin", pa.string()), ("dest", pa.string()),
            ("flight", pa.int64()), ("time", pa.timestamp("us")), ("arr_delay", pa.float64()),
        ])  # fmt: skip
        for day in range(1, files + 1):
            flights = [
                {"tailnum": f"N{n % 3}", "carrier": "UA", "origin": "EWR", "dest": "IAH", "flight": n,
                 "time": datetime(2013, 1, day, n), "arr_delay": float(n)}  # noqa: DTZ001
                for n in range(rows)
            ]  # fmt: skip
            pq.write_table(pa.Table.from_pylist(flights, schema), landing / f"{day}.parquet")

    def type(self, text: str) -> list[str]:
        """What a shell prints for these lines."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(["bash", "-euc", text], cwd=self.folder, env=environment, capture_output=True, text=True,
                              check=False)  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.splitlines()


def test_each_command_of_the_example_can_be_parsed(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, f"-c '{STARS}'")
    example, *_ = _blocks("Run a job")
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
    assert 'job.flights="$PWD/.demo/landing"' in README


def test_each_make_target_and_file_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|^)make ([a-z-]+)", README, re.MULTILINE)) <= targets
    (pip, folder) = _blocks("Install")
    (file,) = re.findall(r"pip install -r (\S+)", pip)
    assert (ROOT / file).is_file() and re.search(r"^pip install --no-deps \.", pip, re.MULTILINE)
    assert 'PLUGINS_FOLDER="$PWD/plugins" PYTHONPATH="$PWD"' in folder
    assert (ROOT / "plugins" / "stateflow_plugin.py").is_file() and (
        ROOT / "stateflow" / "__main__.py"
    ).is_file()


def test_the_first_example_is_python_and_of_the_job_it_names() -> None:
    (block,) = re.findall(
        r"^```python\n(.*?)^```$", README.partition("## Try it")[0], re.MULTILINE | re.DOTALL
    )
    here = {node.name for node in ast.parse(block).body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    job = ast.parse((ROOT / "dags" / "jobs" / "flights.py").read_text())
    assert here <= {node.name for node in job.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}


@pytest.mark.slow
@pytest.mark.spark
def test_the_example_works_as_it_stands(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, "-m stateflow")
    checkout.deliver(files=14, rows=5)
    example, *_ = _blocks("Run a job")
    first, *status, gc = checkout.type(example)
    assert re.fullmatch(
        r"flights: 2 batches, 70 rows in, \d+ out \(.*\), from the beginning to checkpoint 3, caught-up, .*",
        first,
    )
    assert re.match(r"job flights \([0-9a-f]{32}\)", status[0]) and "checkpoint 3, " in status[1]
    assert gc.startswith("flights: would delete ")
    delays = DeltaTable(tmp_path / ".demo" / "mine" / "tables" / "delays").to_pyarrow_table().to_pylist()
    assert Counter(row["time"].day for row in delays) == dict.fromkeys(range(1, 15), 5)
    again, *_ = checkout.type(example)
    assert "0 batches, 0 rows in, from checkpoint 3 to checkpoint 3, caught-up" in again
