"""Spark's Java process: its settings come by a private file, and other users cannot connect to its sockets."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.servers.running import files_with
from tests.support.processes import ROOT

pytestmark = pytest.mark.spark

_SECRET = "swordfish-in-a-setting"
_JOB = """
import msgspec
from stateflow import DeltaSink, FileSource

class Order(msgspec.Struct):
    customer: str
    amount: float

def build(env):
    orders = env.from_source(FileSource("orders", schema=Order, format="json"), uid="orders")
    newest = orders.key_by("customer").reduce(lambda before, row: row, uid="newest")
    newest.sink_to(DeltaSink("totals"), uid="totals")
"""
_SETTINGS = f"""
local_dir = "scratch"
[spark]
log = "full"
[spark.conf]
"spark.hadoop.fs.s3a.secret.key" = "{_SECRET}"
"spark.authenticate.secret" = "{_SECRET}"
"spark.executorEnv.PASSWORD" = "{_SECRET}"
"spark.authenticate" = "true"
"spark.network.crypto.enabled" = "true"
"spark.network.crypto.cipher" = "AES/GCM/NoPadding"
"spark.io.encryption.enabled" = "true"
# Spark writes all its settings into this log.
"spark.eventLog.enabled" = "true"
"spark.eventLog.compress" = "false"
"spark.logConf" = "true"
"""


@contextmanager
def _command_lines() -> Iterator[set[bytes]]:
    """The arguments of all processes of this host that exist at any look, as every user can see them."""
    found: set[bytes] = set()
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.01):
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    found.add((process / "cmdline").read_bytes())
                except OSError:  # it has ended
                    continue

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()


@pytest.mark.slow(reason="starts Spark in a process of its own")
def test_secrets_in_spark_settings_are_neither_in_arguments_nor_in_any_file_and_the_run_is_encrypted(
    tmp_path: Path,
) -> None:
    job = tmp_path / "job"
    (job / "orders").mkdir(parents=True)
    (job / "orders" / "1.json").write_text('{"customer": "ann", "amount": 3}\n')
    (job / "job.py").write_text(_JOB)
    settings = tmp_path / "settings.toml"
    (job / "events").mkdir()
    settings.write_text(f'{_SETTINGS}"spark.eventLog.dir" = "{(job / "events").as_uri()}"\n')
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "stateflow", "run", "job.py", "--job-root=root", f"--config={settings}"]
    with _command_lines() as seen:
        done = subprocess.run(command, cwd=job, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    java = [line for line in seen if b"org.apache.spark.deploy.SparkSubmit" in line and bytes(job) in line]
    assert java and all(b"--properties-file" in line for line in java)
    assert not [line for line in seen if _SECRET.encode() in line]
    assert _SECRET.encode() not in done.stdout + done.stderr
    # Spark redacts its event log, which shows that the settings were used.
    assert files_with('"spark.io.encryption.enabled":"true"', job / "events")
    assert files_with("spark.authenticate.secret", job / "events")
    assert files_with(_SECRET, job) == []
    assert not list((job / "scratch").glob("spark-*.conf"))


_PRINTS = """
import json, sys
from pathlib import Path
from stateflow.config.sources import resolve
from stateflow.runtime.spark.session.session import JobTraits, open_session

lost_after = "spark.storage.blockManagerHeartbeatTimeoutMs"
names = ["spark.master", "spark.sql.shuffle.partitions", "spark.ui.retainedJobs", "spark.x", lost_after]
settings = resolve({"local_dir": sys.argv[1], "spark.conf.spark.x": "settings"})
session = open_session(settings, JobTraits(has_expressions=False, has_fixed_rows=False))
conf = session.sparkContext.getConf()
print("found", json.dumps([conf.get(name) for name in names]))
session.stop()
"""


@pytest.mark.slow(reason="starts Spark by spark-submit")
@pytest.mark.parametrize("kind", ["spark-submit", "a file"])
def test_master_and_settings_of_spark_submit_are_taken_before_defaults(tmp_path: Path, kind: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PRINTS)
    (tmp_path / "spark-defaults.conf").write_text("spark.ui.retainedJobs 9\n")
    given = tmp_path / "given.conf"
    given.write_text("spark.sql.shuffle.partitions 7\nspark.ui.retainedJobs 9\n")
    options = {
        "spark-submit": ["--master", "local[1,7]", "--conf", "spark.sql.shuffle.partitions=7"],
        "a file": ["--master", "local[1,7]", "--properties-file", str(given)],
    }[kind]
    scratch = str(tmp_path / "scratch")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_CONF_DIR": str(tmp_path)}
    if kind == "spark-submit":
        command = [str(Path(sys.executable).parent / "spark-submit"), *options, str(program), scratch]
    else:
        command = [sys.executable, str(program), scratch]
        environment["PYSPARK_SUBMIT_ARGS"] = " ".join([*options, "pyspark-shell"])
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    printed = re.search(r"^found (.*)$", done.stdout, re.MULTILINE)
    assert printed, done.stdout + done.stderr
    # A suspended host does not cost a local run its own executor.
    assert json.loads(printed[1]) == ["local[1,7]", "7", "9", "settings", "365d"]


# -- sockets: who can connect to one runs code as the driver's user ---------------------------------------------------

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


@pytest.mark.slow(reason="starts Spark in a process of its own")
def test_unix_sockets_are_in_a_folder_of_this_user_alone_whatever_the_umask(short: Path) -> None:
    # The operator's own folder may be open to others.
    (short / "l").mkdir(mode=0o755)
    assert f"found {short}/l/sockets/." in _output(short, short / "l")
    assert (short / "l" / "sockets").stat().st_mode & 0o777 == 0o700


_slow = pytest.mark.slow(reason="starts Spark in a process of its own")


@_slow
def test_the_sockets_of_a_folder_with_a_long_path_are_in_the_default_one(short: Path) -> None:
    default = short / f"stateflow-{os.getuid()}"
    assert f"found {default}/sockets/." in _output(short, short / ("long" * 25))


@_slow
def test_without_a_folder_of_this_user_sockets_ask_for_a_token(short: Path) -> None:
    (short / f"stateflow-{os.getuid()}").mkdir()
    (short / f"stateflow-{os.getuid()}").chmod(0o777)
    assert "found ('127.0.0.1'," in _output(short, short / ("long" * 25))
