"""No command opens a location that the environment does not allow."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateflow import operations
from stateflow.storage.locations import VARIABLE
from tests.support.cli_fixture import CliFixture
from tests.support.commands import invoke


@pytest.fixture
def saved(ran: CliFixture, tmp_path: Path) -> str:
    """A savepoint outside of the job root; the environment then allows only the folder `allowed`."""
    request = operations.SavepointRequest("apart")
    return operations.create_savepoint_into(ran.root, request, str(tmp_path / "elsewhere")).path


@pytest.mark.parametrize(
    "words",
    [
        ("savepoint", "show", "<saved>"),
        ("savepoint", "verify", "<saved>"),
        ("savepoint", "dispose", "<saved>"),
        ("savepoint", "list", "--in", "<elsewhere>"),
        ("savepoint", "create", "--into", "<elsewhere>", "--from-head"),
        ("fork", "latest", "--into", "<elsewhere>/fork"),
        ("fork", "<saved>", "--into", "<allowed>/fork"),
        ("restore", "<job>", "--plan", "<saved>"),
    ],
    ids=" ".join,
)
def test_no_command_opens_a_location_that_is_not_allowed(
    ran: CliFixture, saved: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "allowed"))
    places = {"saved": saved, "job": str(ran.job)} | {n: str(tmp_path / n) for n in ("elsewhere", "allowed")}
    arguments = list(words)
    for name, place in places.items():
        arguments = [word.replace(f"<{name}>", place) for word in arguments]
    root = [] if "--in" in words else ["--job-root", ran.root]
    refused = invoke(*arguments, *root)
    assert refused.exit_code == 2 and "not allowed" in refused.output, refused.output
