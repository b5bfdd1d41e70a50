"""The files of requirements, and the versions that belong together."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = ("requirements-build", "requirements", "requirements-dev", "requirements-node", "tests/servers/moto")
PIN = re.compile(r"([a-z0-9][\w.-]*)==([\w.]+)( ; [^\\]+)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)")
"""A package with its version, perhaps a condition, and the hashes of its archives."""


def _pins(file: str) -> dict[str, str]:
    return {name: version for name, version, _, _ in PIN.findall((ROOT / f"{file}.txt").read_text())}


@pytest.mark.parametrize("file", FILES)
def test_every_direct_requirement_is_pinned_and_there_is_nothing_but_pins_with_hashes(file: str) -> None:
    """No address of an index, no path of the machine on which they were compiled."""
    text = re.sub(r"^#.*\n", "", (ROOT / f"{file}.txt").read_text(), flags=re.MULTILINE)
    assert PIN.sub("", text) == ""
    direct = re.findall(r"^([\w.][\w.-]*)", (ROOT / f"{file}.in").read_text(), flags=re.MULTILINE)
    assert {name.lower() for name in direct} <= _pins(file).keys()


def test_versions_that_belong_together_are_equal() -> None:
    build, deployed, development, *_ = map(_pins, FILES)
    assert {name: version for name, version in development.items() if name in deployed}.items() <= deployed.items()
    assert build.items() <= development.items()
    # They share files.
    assert deployed["pyspark"] == deployed["pyspark-client"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]
    assert project["requires"] == [f"setuptools=={build['setuptools']}"]


@pytest.mark.parametrize("folder", ["tests/servers", "ui"])
def test_the_lock_file_of_npm_has_a_hash_for_every_package_and_no_address(folder: str) -> None:
    wanted = json.loads((ROOT / folder / "package.json").read_text())
    own, *packages = json.loads((ROOT / folder / "package-lock.json").read_text())["packages"].values()
    for kind in ("dependencies", "devDependencies"):
        assert own.get(kind) == wanted.get(kind)
        assert all(re.fullmatch(r"[\d.]+", version) for version in wanted.get(kind, {}).values())
    assert packages and all(each["integrity"].startswith("sha512-") for each in packages)
    # Where a package comes from is a setting of the machine.
    assert not [each for each in packages if "resolved" in each or "funding" in each]
