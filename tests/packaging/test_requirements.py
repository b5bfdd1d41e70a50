"""The files of requirements, and the versions that belong together."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("requirements", "requirements-dev")


def _pins(kind: str) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / f"{kind}.txt").read_text(), flags=re.MULTILINE))


@pytest.mark.parametrize("kind", KINDS)
def test_every_direct_requirement_is_pinned_and_there_is_nothing_but_pins(kind: str) -> None:
    """No address of an index, no path of the machine on which they were compiled."""
    for line in (ROOT / f"{kind}.txt").read_text().splitlines():
        assert line.startswith("#") or re.fullmatch(r"[a-z0-9][\w.-]*==[\w.]+( ; .+)?", line), line
    direct = re.findall(r"^([\w.-]+)", (ROOT / f"{kind}.in").read_text(), flags=re.MULTILINE)
    assert {name.lower() for name in direct if name != "-c"} <= _pins(kind).keys()


def test_versions_that_belong_together_are_equal() -> None:
    deployed, development = map(_pins, KINDS)
    assert {name: version for name, version in development.items() if name in deployed}.items() <= deployed.items()
    # They share files.
    assert deployed["pyspark"] == deployed["pyspark-client"]
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]
    assert build["requires"] == [f"setuptools=={development['setuptools']}"]
