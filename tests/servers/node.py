"""Servers that come from npm: ``scripts/setup.sh`` installs what ``tests/servers/package.json`` names."""

from __future__ import annotations

import shutil

import pytest

from tests.servers.running import ROOT

MODULES = ROOT / ".venv" / "node" / "node_modules"


def command(package: str, script: str) -> list[str]:
    """What starts a script of a package; a test is skipped where there is none."""
    node, path = shutil.which("node"), MODULES / package / script
    if node is None or not path.exists():
        pytest.skip(f"{package} is not installed: make setup installs it where Node can be had")
    return [node, str(path)]
