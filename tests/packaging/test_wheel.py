"""The wheel: its files, and what installations can do, without extras and with some."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from email.parser import Parser
from pathlib import Path

import pytest

from tests.docs.pages import blocks, read, section
from tests.support.errors import reported_error
from tests.support.job_fixture import AccountsJob

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("stateflow", "plugins", "pyproject.toml", "README.md", "LICENSE")
HEAVY = {"airflow", "pyspark", "pandas", "deltalake", "obstore", "hdfs"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that the build leaves nothing in the repository."""
    folder = tmp_path_factory.mktemp("build")
    copy_sources(folder)
    options = ("--wheel", "--no-build-isolation", "--quiet", "--python", sys.executable)
    run(["uv", "build", *options, "--out-dir", str(folder / "wheels"), str(folder)])
    (built,) = (folder / "wheels").glob("*.whl")
    return built


def copy_sources(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)


def run(command: Sequence[str], **environment: str) -> str:
    given = {**os.environ, **environment}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=given)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.long(reason="builds the wheel")
def test_every_file_of_the_packages_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    present = {
        str(path.relative_to(parent))
        for package, parent in ((ROOT / "stateflow", ROOT), (ROOT / "plugins" / "stateflow_airflow", ROOT / "plugins"))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == present


def test_the_metadata_names_licence_versions_and_extras(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
        assert any(n.endswith(".dist-info/licenses/LICENSE") for n in archive.namelist())
    assert metadata["License-Expression"] == "Apache-2.0"
    optional = {"airflow", "avro", "delta", "iceberg", "kafka", "postgres", "serve", "spark", "sql", "ui"}
    extras = optional | {"azure", "cluster", "gcs", "hdfs", "openlineage", "s3", "telemetry"}
    assert set(metadata.get_all("Provides-Extra") or ()) == extras
    required = [line for line in metadata.get_all("Requires-Dist") or () if "extra ==" not in line]
    assert not [line for line in required for heavy in HEAVY if line.startswith(heavy)]


# -- installations: they need the package index -----------------------------------------------------------------------


@pytest.mark.slow(reason="installs a wheel into a new environment")
def test_without_extras_the_commands_work_on_a_job_root(tmp_path: Path) -> None:
    """Pip builds the wheel, and an empty environment gets it with its requirements."""
    job = AccountsJob(tmp_path / "job")
    job.deliver(20)
    job.finish()
    programs = tmp_path / "venv" / "bin"
    run(["uv", "venv", "--quiet", "--seed", "--python", sys.executable, str(programs.parent)])
    pip = [str(programs / "pip"), "--disable-pip-version-check"]
    copy_sources(tmp_path / "source")
    clean = {"PYTHONPATH": "", "HOME": str(tmp_path)}
    run([*pip, "wheel", "--no-deps", "--wheel-dir", str(tmp_path / "wheels"), str(tmp_path / "source")], **clean)
    run([*pip, "install", *map(str, (tmp_path / "wheels").iterdir())], **clean)
    installed = {each["name"] for each in json.loads(run([*pip, "list", "--format=json"], **clean))}
    assert installed & HEAVY == set() and "stateflow" in installed
    command, root = str(programs / "stateflow"), f"--job-root={job.root}"
    assert json.loads(run([command, "status", root, "--json"], **clean))["checkpoint_id"] > 0
    run([command, "verify", "--deep", root], **clean)
    run([command, "savepoint", "create", "--name", "kept", root], **clean)
    assert [path.name.rpartition("-")[0] for path in (job.root / "savepoints").iterdir()] == ["kept"]
    job_file = tmp_path / "job.py"
    job_file.write_text(
        "import msgspec\n"
        "from stateflow import FileSource\n\n"
        "class Row(msgspec.Struct):\n    id: int\n\n"
        "def build(env):\n"
        f"    env.from_source(FileSource({str(tmp_path)!r}, schema=Row), uid='rows').print(uid='shown')\n"
    )
    new = [command, "run", str(job_file), f"--job-root={tmp_path / 'new'}"]
    refused = subprocess.run(new, capture_output=True, text=True, check=False, env={**os.environ, **clean})
    assert refused.returncode == 2
    error = reported_error(refused.stderr)
    assert (error.code, error.facts["package"]) == ("environment-unsupported", "pyspark")


@pytest.mark.slow(reason="installs a wheel into a new environment")
@pytest.mark.spark
def test_with_the_extras_spark_and_delta_and_without_airflow_the_quickstart_runs(wheel: Path, tmp_path: Path) -> None:
    programs = _environment_with(wheel, "spark,delta", tmp_path)
    assert not any(name.startswith("apache-airflow") for name in _installed(programs))
    quickstart = section(read("README.md"), "Quickstart")
    (tmp_path / "job.py").write_text(*blocks(quickstart, "python"))
    commands = "\n".join(blocks(quickstart, "bash"))
    clean = {"PYTHONPATH": "", "PATH": f"{programs}:{os.environ['PATH']}"}
    run(["bash", "-euc", f"cd {tmp_path}\n{commands}"], **clean)
    status = run([str(programs / "stateflow"), "status", f"--job-root={tmp_path / 'root'}", "--json"], **clean)
    assert json.loads(status)["checkpoint_id"] > 0


def _environment_with(wheel: Path, extras: str, folder: Path) -> Path:
    """A new environment with the wheel and extras, in the pinned versions; the folder of its programs."""
    programs = folder / "venv" / "bin"
    run(["uv", "venv", "--quiet", "--python", sys.executable, str(programs.parent)])
    pins = ["--constraint", str(ROOT / "requirements.txt"), f"stateflow[{extras}] @ {wheel.as_uri()}"]
    run(["uv", "pip", "--quiet", "install", "--python", str(programs / "python"), *pins], UV_SYSTEM_CERTS="1")
    return programs


def _installed(programs: Path) -> set[str]:
    listed = run(["uv", "pip", "--quiet", "list", "--python", str(programs / "python"), "--format=json"])
    return {each["name"] for each in json.loads(listed)}


SUBMIT = """
import sys
from pathlib import Path

from airflow.dag_processing.dagbag import DagBag

from stateflow_airflow.hooks import StateflowSubmitHook
from stateflow_airflow.launch import Launcher
from stateflow_airflow.operators.run import StateflowRunOperator

bag = DagBag(sys.argv[1])
assert not bag.import_errors, bag.import_errors
(task,) = (task for task in bag.dags["flights"].tasks if isinstance(task, StateflowRunOperator))
launcher = Launcher(Path(sys.argv[2]))
arguments = ["run", task.job, "--job-root", "/jobs"]
with launcher.hold_lock():
    folder = launcher.next_folder()
    launch = launcher.start(folder, StateflowSubmitHook(task.spark).command("stateflow flights", arguments, folder))
while not launcher.wait(launch, 1):
    pass
assert launch.exit_code() == 0
print("submitted", launch.log_file.read_text().strip())
"""


@pytest.mark.slow(reason="installs a wheel into a new environment")
def test_with_the_extra_airflow_and_without_pyspark_a_run_of_a_dag_is_submitted(wheel: Path, tmp_path: Path) -> None:
    """A `spark-submit` on the PATH, such as that of a Spark distribution, receives the command; a fake prints it."""
    programs = _environment_with(wheel, "airflow", tmp_path)
    installed = _installed(programs)
    assert "apache-airflow" in installed and "pyspark" not in installed
    assert not (programs / "spark-submit").exists()
    spark_submit = tmp_path / "spark" / "spark-submit"
    spark_submit.parent.mkdir()
    spark_submit.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    spark_submit.chmod(0o755)
    environment = {
        "PYTHONPATH": "",
        "PATH": f"{spark_submit.parent}:{os.environ['PATH']}",
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "spark://master", "port": 7077}),
    }
    program = tmp_path / "submit.py"
    program.write_text(SUBMIT)
    dags = ROOT / "dags"
    lines = run(
        [str(programs / "python"), str(program), str(dags), str(tmp_path / "launches")], **environment
    ).splitlines()
    (site,) = programs.parent.glob("lib/*/site-packages")
    program_and_job = [str(site / "stateflow" / "__main__.py"), "run", str(dags / "jobs" / "flights.py")]
    assert lines[lines.index("submitted --master") + 1] == "spark://master:7077"
    assert lines[-5:] == [*program_and_job, "--job-root", "/jobs"]
