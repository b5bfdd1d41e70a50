"""The import contracts in pyproject.toml: the package keeps them, and each one forbids what its name says."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import ROOT

FORBIDDEN = {
    "layers": ("state/handles.py", "stateflow.runtime.publisher"),
    "pyspark": ("checkpoint/history.py", "pyspark"),
    "rocksdict": ("checkpoint/history.py", "rocksdict"),
    "storage-clients": ("checkpoint/history.py", "obstore"),
    "airflow": ("checkpoint/history.py", "airflow"),
    "connectors": ("connectors/iceberg/sink.py", "stateflow.connectors.postgres.sink"),
    "optional": ("runtime/publisher.py", "stateflow.replay"),
    "sql": ("api/watermarks.py", "stateflow.api.sql.queries"),
    "hdfs": ("storage/posix.py", "stateflow.storage.hdfs"),
}
"""Of each contract, a module and an import that breaks it."""


def _contracts() -> list[dict[str, Any]]:
    contracts: list[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    return contracts


def _verdicts(repository: Path) -> set[str]:
    """Returns the ids of the contracts that are kept."""
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([program, "--no-cache"], cwd=repository, capture_output=True, text=True, check=False)
    shown = " ".join(done.stdout.split())
    return {contract["id"] for contract in _contracts() if f"{contract['name']} KEPT" in shown}


@pytest.mark.long(reason="reads the imports of all modules")
def test_the_package_keeps_all_contracts_of_which_there_are_at_most_ten() -> None:
    assert len(_contracts()) <= 10
    assert _verdicts(ROOT) == {contract["id"] for contract in _contracts()} == set(FORBIDDEN)


@pytest.mark.long(reason="reads the imports of all modules")
def test_each_contract_refuses_an_import_that_breaks_its_rule(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "stateflow", tmp_path / "stateflow", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for file, module in FORBIDDEN.values():
        path = tmp_path / "stateflow" / file
        path.write_text(path.read_text() + f"\nimport {module}\n")
    assert _verdicts(tmp_path) == set()
