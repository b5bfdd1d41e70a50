"""The commands that the pages show, parsed as a shell and the command line parse them."""

from __future__ import annotations

import json
import shlex
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import pytest

from stateflow.cli.main import main
from stateflow.ui.jobs import not_measured

COMMANDS: dict[str, str] = json.loads(
    (Path(__file__).parents[2] / "ui" / "src" / "test-requests.json").read_text(encoding="utf-8")
)["commands"]
"""What the pages show for names with blanks, quotes and other characters of a shell; their tests compare it."""
ROOT = "s3://bucket/jobs of 'uma'"
FILE, SETTINGS = Path('/my jobs/it\'s "one".py'), Path("/my jobs/$settings.toml")
REASON = 'it\'s "bad"; rm -rf $(pwd)\nnow'
VALUES: dict[str, dict[str, object]] = {
    "run": {"job": FILE, "config": SETTINGS},
    "run without settings": {"job": Path("JOB.py"), "config": None},
    "savepoint": {},
    "stop": {"with_savepoint": True},
    "plan": {
        "job": FILE,
        "config": SETTINGS,
        "target": 'before:orders={"0": 5}',
        "keep_tables": ("out",),
        "drop": ("old.sum",),
        "maps": ("count=counts",),
        "sources": ('clicks={"0": 5}',),
        "from_other_job": True,
        "claim_mode": "claim",
        "out": Path("plan.json"),
    },
    "execute": {"job": FILE, "config": SETTINGS, "reason": REASON},
    "prune": {"keep": 1, "max_age": timedelta(hours=36), "dry_run": False},
    "gc": {"retain": 2, "dry_run": False},
    "list pruned": {"keep": 1, "max_age": timedelta(hours=36), "dry_run": True},
    "list garbage": {"retain": 2, "dry_run": True},
    "verify": {"name": "before-v2"},
    "dispose": {"name": "before-v2", "reason": REASON, "claimed": False},
    "dispose claimed": {"name": "before-v2", "claimed": True},
}


def test_each_kind_of_command_is_parsed() -> None:
    assert VALUES.keys() == COMMANDS.keys()


@pytest.mark.parametrize("name", VALUES)
def test_a_command_of_a_page_works_as_it_is_copied(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plan.json").touch()
    found = parsed(shlex.split(COMMANDS[name]))
    assert {key: found.get(key) for key in VALUES[name]} == VALUES[name]
    assert found["job_root"] == ROOT


def test_the_command_that_measures_waiting_input_names_the_job_root() -> None:
    found = parsed(shlex.split(not_measured(ROOT).partition(": ")[2]))
    assert (found["job_root"], found["job"]) == (ROOT, Path("JOB.py"))


def parsed(words: list[str]) -> dict[str, Any]:
    program, *rest = words
    assert program == "stateflow"
    command: click.Command = main
    context = click.Context(main, **main.context_settings)
    while isinstance(command, click.Group):
        part, *rest = rest
        context, command = click.Context(command, parent=context), command.commands[part]
    return command.make_context(command.name, rest, parent=context).params
