"""``stateflow query``: the committed state of a job from its state servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stateflow.errors import (
    CheckpointNotServed,
    ConfigError,
    NotYetAvailable,
    Unauthorized,
    UnknownJob,
    UnknownState,
    WrongKeyType,
)
from stateflow.private_files import write_private
from tests.cli.test_json import PRINTED
from tests.serving.shops_job import TOKEN, ShopsJob, serving
from tests.support.cli_fixture import invoke
from tests.support.json_outputs import check

EMPTY = 6


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShopsJob]:
    jobs = ShopsJob(tmp_path_factory.mktemp("job"))
    jobs.sell(60)
    write_private(jobs.folder / "token", f"{TOKEN}\n".encode())
    with serving(jobs.root):
        yield jobs


def _words(jobs: ShopsJob, *words: str) -> list[str]:
    options = ["--job-root", jobs.root, "--token-file", str(jobs.folder / "token"), "--timeout", "30"]
    return ["query", *words, *options]


def _lines(jobs: ShopsJob, *words: str) -> list[Any]:
    ended = invoke(*_words(jobs, *words))
    assert ended.exit_code == 0, ended.output
    found = [json.loads(line) for line in ended.stdout.splitlines()]
    for line in found:
        check(PRINTED[f"query {words[0]}"].output, line)
    return found


def _key(key: tuple[str, int]) -> list[str]:
    return ["--key", json.dumps(key)]


def test_queries_print_the_committed_state(jobs: ShopsJob) -> None:
    ((newest, wanted),) = jobs.expected.items()
    key, total = next(iter(wanted.totals.items()))
    value = {"checkpoint_id": newest, "value": msgspec.to_builtins(total)}
    assert _lines(jobs, "get", "totals", *_key(key)) == [value]
    assert _lines(jobs, "get", "totals", "--key", key[0], "--key", str(key[1]), "--exactly", str(newest)) == [value]
    key, items = max(wanted.items.items(), key=lambda entry: len(entry[1]))
    for item, amount in items.items():
        (line,) = _lines(jobs, "get", "sold-items", *_key(key), "--map-key", item)
        assert line["value"] == amount
    entries = [(line["map_key"], line["value"]) for line in _lines(jobs, "scan", "sold-items", *_key(key))]
    assert entries == sorted(items.items())
    some = _lines(jobs, "scan", "sold-items", *_key(key), "--prefix", "t", "--limit", "1", "--at-least", str(newest))
    assert [line["map_key"] for line in some] == [item for item in sorted(items) if item.startswith("t")][:1]
    assert {tuple(line["key"]) for line in _lines(jobs, "keys", "totals")} == set(wanted.totals)
    assert len(_lines(jobs, "keys", "totals", "--limit", "3")) == 3
    assert [(line["name"], line["kind"]) for line in _lines(jobs, "states")] == [
        ("largest", "reducing"),
        ("sold-items", "map"),
        ("totals", "value"),
    ]


def test_a_key_without_a_value_has_an_exit_code_of_its_own(jobs: ShopsJob) -> None:
    ended = invoke(*_words(jobs, "get", "totals", "--key", '["nowhere", 1]'))
    assert (ended.exit_code, ended.stdout) == (EMPTY, "")


def test_each_failure_has_the_exit_code_of_its_error(jobs: ShopsJob, tmp_path: Path) -> None:
    ((newest, wanted),) = jobs.expected.items()
    get = ("get", "totals", *_key(next(iter(wanted.totals))))
    failures: list[tuple[type[Any], list[str]]] = [
        (UnknownState, _words(jobs, "get", "total", "--key", '["north", 1]')),
        (WrongKeyType, _words(jobs, "get", "totals", "--key", "north")),
        (WrongKeyType, _words(jobs, "scan", "totals", "--key", '["north", 1]')),
        (NotYetAvailable, [*_words(jobs, *get, "--at-least", str(newest + 1)), "--timeout", "0"]),
        (CheckpointNotServed, _words(jobs, *get, "--exactly", str(newest - 1))),
        (Unauthorized, ["query", *get, "--job-root", jobs.root]),
        (ConfigError, [*_words(jobs, *get), "--token-file", str(tmp_path / "none")]),
        (UnknownJob, ["query", *get, "--job-root", str(tmp_path)]),
    ]
    for error, words in failures:
        ended = invoke(*words)
        assert (ended.exit_code, f"[{error.code}]" in ended.output) == (error.exit_code, True), (words, ended.output)
    assert "'totals'" in invoke(*_words(jobs, "get", "total", "--key", '["north", 1]')).output


@pytest.mark.parametrize(("mode", "is_refused"), [(0o640, False), (0o604, True), (0o620, True)])
def test_a_file_with_the_token_that_others_may_read_or_write_is_refused(
    jobs: ShopsJob, mode: int, is_refused: bool
) -> None:
    file = jobs.folder / f"token-{mode:o}"
    write_private(file, TOKEN.encode())
    file.chmod(mode)
    options = ["--job-root", jobs.root, "--token-file", str(file), "--timeout", "30"]
    assert invoke("query", "states", *options).exit_code == (2 if is_refused else 0)
