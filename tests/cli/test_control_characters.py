"""Texts of others, such as reasons and names, cannot control the terminal."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.api.source import spark_position
from stateflow.cli.common import align_columns, one_line, short_offset, visible
from tests.support import root_files
from tests.support.cli_fixture import CliFixture, invoke

HOSTILE = "\x1b[2J\x1b]0;title\x07\x9b1A\r\u202egnorw\u200b\x7f\xad\u3164\U000e0041"
_ALLOWED = {"\n", "\t"}


def _controls(text: str) -> set[str]:
    return {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs") and c not in _ALLOWED}


@given(st.text(st.one_of(st.characters(categories=["Cc", "Cf", "Cs"]), st.characters())))
def test_no_control_character_is_left_and_json_means_the_same(text: str) -> None:
    # Of the invisible ones, the marks of some scripts are harmless.
    assert not {c for c in _controls(visible(text)) if unicodedata.category(c) != "Cf"}
    assert json.loads(visible(json.dumps(text, ensure_ascii=False))) == text


def test_the_short_position_of_a_delta_table_begins_with_its_version() -> None:
    names = '{"sourceVersion":1,"reservoirId":"a86dc411-9f3c-4c6d-abdb-e1b467f9fa49","reservoirVersion":3,"index":-1}'
    assert short_offset(names) == "version:3,index:-1"
    assert short_offset('{"orders":{"0":1797,"1":2203}}') == "orders:0:1797,1:2203"
    table = '{"table":"02ccfe29-94ed-4794-bd65-6ba16e3ee0c6","version":3}'
    assert short_offset(table) == short_offset(json.dumps(spark_position(table))) == "version:3"
    assert short_offset('{"table":{"0":3,"1":4}}') == "table:0:3,1:4"


def test_no_command_prints_a_control_character(cli: CliFixture) -> None:
    """Of a job whose history has hostile names and reasons."""
    cli.run()
    who, root, plan = ("--by", HOSTILE, "--reason", HOSTILE), ("--job-root", cli.root), str(cli.folder / "plan.json")
    for words in (("savepoint", "create", "--name", "s", "--from-head"), ("fork", "s", "--into", f"{cli.root}-fork")):
        assert invoke(*words, *root, *who).exit_code == 0
    restore = ("restore", str(cli.job), *cli.command()[2:])
    assert invoke(*restore, "--plan", "2", "--out", plan).exit_code == 0
    assert invoke(*restore, "--execute", plan, *who).exit_code == 0
    for line in ("history", "status", "savepoint list", "savepoint show s"):
        for more in ((), ("--json",)):
            _check(*line.split(), *more, *root)
    _check("pins", *root)
    _check("checkpoints", "list", *root)
    _check("savepoint", "show", HOSTILE, *root)
    _check("savepoint", "dispose", f"x/{HOSTILE}", *root)


def _check(*words: str) -> None:
    shown = invoke(*words)
    assert shown.output and not _controls(shown.output), words


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_log_line_has_a_control_character(
    cli: CliFixture, capfd: pytest.CaptureFixture[str], log_format: str
) -> None:
    cli.write(
        f"""
        import logging

        def build(env):
            logging.getLogger("job").warning({HOSTILE!r})
            env.from_source(source(), uid="rows").sink_to(sink(), uid="out")
        """
    )
    shown = invoke(*cli.command("--log-format", log_format))
    assert not _controls(shown.output + capfd.readouterr().err)


def test_the_tables_of_a_plan_and_of_the_status_show_texts_as_they_are(cli: CliFixture) -> None:
    cli.run()
    made = invoke("savepoint", "create", "--name", "s", "--from-head", "--job-root", cli.root)
    assert made.exit_code == 0
    (savepoint,) = Path(cli.root).glob("savepoints/*/_savepoint")
    for text in (HOSTILE, "[/x]", "[red]x[/red]", "[link=file:///x]x"):
        _forge(savepoint, partial(_forge_position, text))
        for path in Path(cli.root).glob("history/*-checkpoints-*"):
            path.write_text(json.dumps([{**record, "ended_at": text} for record in json.loads(path.read_text())]))
        plan = invoke("restore", str(cli.job), *cli.command()[2:], "--plan", "s")
        status = invoke("status", "--job-root", cli.root)
        for shown in (plan, status):
            assert shown.exit_code == 0 and not _controls(shown.output)
            assert one_line(text)[:7] in shown.output


def _forge_position(text: str, document: dict[str, Any]) -> None:
    document["manifest"]["sources"][0]["offset"] = text


FORGED = "mine\nNEXT LINE\tx"


def _forge(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    document, _ = root_files.unsealed(path.read_bytes())
    change(document)
    path.write_bytes(root_files.sealed(document))


def _forge_operators(document: dict[str, Any]) -> None:
    document |= {"by": FORGED, "reason": FORGED, "job": FORGED}
    for part in ("operators", "sources"):
        for each in document["manifest"][part]:
            each["uid"] = FORGED


def test_a_text_with_a_line_feed_forges_no_line(cli: CliFixture) -> None:
    cli.run()
    root = Path(cli.root)
    assert invoke("savepoint", "create", "--name", "s", "--from-head", "--job-root", cli.root).exit_code == 0
    commands = [("savepoint", "list"), ("savepoint", "show", "s"), ("status",)]
    genuine = [invoke(*words, "--job-root", cli.root).output for words in commands]
    (savepoint,) = root.glob("savepoints/*/_savepoint")
    _forge(savepoint, _forge_operators)
    _forge(root_files.entry_path(root, root_files.newest_seq(root)), _forge_offsets)
    for words, before in zip(commands, genuine, strict=True):
        shown = invoke(*words, "--job-root", cli.root).output
        assert shown.count("\n") == before.count("\n")
        assert not [line for line in shown.splitlines() if line.lstrip().startswith("NEXT")]


def _forge_offsets(document: dict[str, Any]) -> None:
    for source in document["sources"]:
        source["uid"] = FORGED


@given(st.text())
def test_one_line_is_one_line(text: str) -> None:
    assert len(one_line(text).splitlines()) <= 1
    assert all(len(line.splitlines()) <= 1 for line in align_columns([[text, "x"], ["x", text]]))
