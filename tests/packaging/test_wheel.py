"""The wheel: what is in it, and what an installation without extras can do."""

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
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment} if environment else None
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


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
    assert set(metadata.get_all("Provides-Extra") or ()) == {
        "airflow",
        "azure",
        "delta",
        "gcs",
        "hdfs",
        "s3",
        "spark",
        "telemetry",
    }
    required = [line for line in metadata.get_all("Requires-Dist") or () if "extra ==" not in line]
    assert not [line for line in required for heavy in HEAVY if line.startswith(heavy)]


@pytest.mark.slow
def test_without_extras_the_commands_work_on_a_job_root(tmp_path: Path) -> None:
    """Needs the package index: pip builds the wheel, and an empty environment gets it and what it requires."""
    box = AccountsJob(tmp_path / "job")
    box.deliver(20)
    box.finish()
    programs = tmp_path / "venv" / "bin"
    run(["uv", "venv", "--quiet", "--seed", "--python", sys.executable, str(programs.parent)])
    pip = [str(programs / "pip"), "--disable-pip-version-check"]
    copy_sources(tmp_path / "source")
    clean = {"PYTHONPATH": "", "HOME": str(tmp_path)}
    run([*pip, "wheel", "--no-deps", "--wheel-dir", str(tmp_path / "wheels"), str(tmp_path / "source")], **clean)
    run([*pip, "install", *map(str, (tmp_path / "wheels").iterdir())], **clean)
    installed = {each["name"] for each in json.loads(run([*pip, "list", "--format=json"], **clean))}
    assert installed & HEAVY == set() and "stateflow" in installed
    command, root = str(programs / "stateflow"), f"--job-root={box.root}"
    assert json.loads(run([command, "status", root, "--json"], **clean))["checkpoint_id"] > 0
    run([command, "verify", "--deep", root], **clean)
    run([command, "savepoint", "create", "--name", "kept", root], **clean)
    assert [path.name.rpartition("-")[0] for path in (box.root / "savepoints").iterdir()] == ["kept"]
    job = tmp_path / "job.py"
    job.write_text("from stateflow import FileSource\n")
    refused = subprocess.run(
        [command, "run", str(job), f"--job-root={tmp_path / 'new'}"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **clean},
    )
    assert refused.returncode == 2
    error = reported_error(refused.stderr)
    assert (error.code, error.facts["package"]) == ("environment-unsupported", "pyspark")
