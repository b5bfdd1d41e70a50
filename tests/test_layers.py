"""Imports only go down: the contracts in pyproject.toml hold, and cover every module."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def verdict() -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("lint-imports")
    return subprocess.run([program, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_contracts_are_kept(verdict: subprocess.CompletedProcess[str]) -> None:
    assert verdict.returncode == 0, verdict.stdout


def test_every_contract_is_checked(verdict: subprocess.CompletedProcess[str]) -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert [c["name"] for c in contracts if f"{c['name']} KEPT" not in verdict.stdout] == []
    assert {"layers", "pyspark", "rocksdict", "storage-clients", "airflow"} <= {c["id"] for c in contracts}


def test_every_top_level_module_has_its_layer() -> None:
    """Exhaustive means that a new module without a place in the list fails."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [c for c in contracts if c["id"] == "layers"]
    assert layers["exhaustive"] is True and layers["exhaustive_ignores"] == ["__main__"]
