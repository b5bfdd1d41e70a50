"""Which users can connect to the sockets between Java and Python: one who can runs code as the driver's user."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import ROOT

pytestmark = pytest.mark.spark

_PROGRAM = """
import os, sys
from pathlib import Path
from stateflow.config.sources import resolve
from stateflow.runtime.spark.session.session import JobTraits, open_session

os.umask(0)
settings = resolve({"local_dir": sys.argv[1], "spark.master": sys.argv[2]})
session = open_session(settings, JobTraits(has_expressions=False, has_fixed_rows=False))
print("found", session.sparkContext._accumulatorServer.server_address)
print("rows", session.range(3).mapInArrow(lambda batches: batches, "id long").count())
session.stop()
"""


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short path, unlike those of pytest."""
    with tempfile.TemporaryDirectory(prefix="s", dir="/tmp") as folder:
        yield Path(folder)


def _output(folder: Path, local_dir: Path) -> str:
    program = folder / "program.py"
    program.write_text(_PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    command = [sys.executable, str(program), str(local_dir), "local[1,2]"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "rows 3" in done.stdout, done.stdout + done.stderr
    return done.stdout


def test_unix_sockets_are_in_a_folder_of_this_user_alone_whatever_the_umask(short: Path) -> None:
    # The operator's own folder may be open to others.
    (short / "l").mkdir(mode=0o755)
    assert f"found {short}/l/sockets/." in _output(short, short / "l")
    assert (short / "l" / "sockets").stat().st_mode & 0o777 == 0o700


def test_the_sockets_of_a_folder_with_a_long_path_are_in_the_default_one(short: Path) -> None:
    default = short / f"stateflow-{os.getuid()}"
    assert f"found {default}/sockets/." in _output(short, short / ("long" * 25))


def test_without_a_folder_of_this_user_sockets_ask_for_a_token(short: Path) -> None:
    (short / f"stateflow-{os.getuid()}").mkdir()
    (short / f"stateflow-{os.getuid()}").chmod(0o777)
    assert "found ('127.0.0.1'," in _output(short, short / ("long" * 25))
