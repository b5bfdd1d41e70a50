"""Targets of restores and forks that look like numbers, and are not the id of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateflow import operations
from stateflow.errors import ConfigError
from stateflow.runtime.restore.planner import RestoreOptions
from tests.support.cli_fixture import CliFixture, invoke
from tests.support.errors import raises

_TARGETS = {"superscript": "²", "arabic": "٣", "18-digits": "9" * 18, "19-digits": "9" * 19, "5000-digits": "9" * 5000}
pytestmark = [
    pytest.mark.parametrize("target", _TARGETS.values(), ids=_TARGETS),
    pytest.mark.parametrize("before", ["", "before:"], ids=["", "before"]),
]


def test_a_command_refuses_the_target(ran: CliFixture, tmp_path: Path, target: str, before: str) -> None:
    for words in (("restore", str(ran.job), "--plan"), ("fork", "--into", str(tmp_path / "new"))):
        refused = invoke(*words, f"{before}{target}", "--job-root", ran.root)
        assert refused.exit_code == ConfigError.exit_code, refused.output
        assert "[config]" in refused.output and "hint:" in refused.output and len(refused.output) < 1000
    assert not (tmp_path / "new").exists()


def test_the_api_refuses_the_target(ran: CliFixture, tmp_path: Path, target: str, before: str) -> None:
    text, code = f"{before}{target}", operations.JobCode(ran.job)
    for act in (
        lambda: operations.plan_restore(ran.root, code, text, RestoreOptions()),
        lambda: operations.fork(ran.root, operations.ForkRequest(text, str(tmp_path / "new"))),
    ):
        with raises(ConfigError) as refused:
            act()
        assert refused.value.code == "config" and refused.value.hint
