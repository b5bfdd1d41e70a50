"""No command opens a location that the environment does not allow, or takes a target that is not a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateflow import operations
from stateflow.errors import ConfigError
from stateflow.storage.locations import VARIABLE
from tests.support.cli_fixture import CliFixture, contents, invoke


@pytest.fixture
def saved(ran: CliFixture, tmp_path: Path) -> str:
    """A savepoint outside of the job root; the environment then allows only the folder `allowed`."""
    request = operations.SavepointRequest("apart")
    return operations.create_savepoint_into(ran.root, request, str(tmp_path / "elsewhere")).path


@pytest.mark.parametrize(
    "words",
    [
        ("savepoint", "show", "<saved>"), ("savepoint", "verify", "<saved>"), ("savepoint", "dispose", "<saved>"),
        ("savepoint", "list", "--in", "<elsewhere>"), ("savepoint", "create", "--into", "<elsewhere>", "--from-head"),
        ("fork", "latest", "--into", "<elsewhere>/fork"), ("fork", "<saved>", "--into", "<allowed>/fork"),
        ("restore", "<job>", "--plan", "<saved>"), ("check", "<job>", "--against", "<saved>", "--no-spark"),
        ("run", "<job>", "--job-root", "<allowed>/new", "--from-savepoint", "<saved>"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_no_command_opens_a_location_that_is_not_allowed(
    ran: CliFixture, saved: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "allowed"))
    places = {"saved": saved, "job": str(ran.job)} | {n: str(tmp_path / n) for n in ("elsewhere", "allowed")}
    arguments = list(words)
    for name, place in places.items():
        arguments = [word.replace(f"<{name}>", place) for word in arguments]
    root = [] if {"--in", "--against", "--job-root"} & {*words} else ["--job-root", ran.root]
    refused = invoke(*arguments, *root)
    assert refused.exit_code == 2 and "not allowed" in refused.output, refused.output


def test_a_job_root_above_an_allowed_savepoint_is_not_written(ran: CliFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = operations.create_savepoint(ran.root, operations.SavepointRequest("inside")).path
    path = Path(uri.removeprefix("file://"))
    before = contents(Path(ran.root))
    monkeypatch.setenv(VARIABLE, str(path))
    disposed = invoke("savepoint", "dispose", str(path))
    assert disposed.exit_code == 0, disposed.output
    inside = str(path.relative_to(ran.root))
    assert contents(Path(ran.root)) == {k: v for k, v in before.items() if not k.startswith(f"{inside}/")}


def test_a_savepoint_in_an_allowed_job_root_is_recorded_as_disposed(
    ran: CliFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = operations.create_savepoint(ran.root, operations.SavepointRequest("inside")).path
    monkeypatch.setenv(VARIABLE, ran.root)
    operations.dispose_path(path)
    assert "dispose" in [entry.kind for entry in operations.timeline(ran.root).entries]


# -- targets that look like numbers, and are not the id of a checkpoint -----------------------------------------------


@pytest.mark.parametrize("target", ["²", "before:٣", "9" * 18, "9" * 19, "before:" + "9" * 5000], ids=lambda t: t[-9:])
def test_a_target_that_is_no_checkpoint_is_refused(ran: CliFixture, tmp_path: Path, target: str) -> None:
    for words in (("restore", str(ran.job), "--plan"), ("fork", "--into", str(tmp_path / "new"))):
        refused = invoke(*words, target, "--job-root", ran.root)
        assert refused.exit_code == ConfigError.exit_code, refused.output
        assert "[config]" in refused.output and "hint:" in refused.output and len(refused.output) < 1000
    assert not (tmp_path / "new").exists()
