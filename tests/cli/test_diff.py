"""``stateflow diff``: screens, listed keys and exit codes."""

from __future__ import annotations

import json

import pytest
from syrupy.assertion import SnapshotAssertion

from stateflow.query.snapshot import open_snapshot
from tests.support.cli_fixture import CliFixture, invoke
from tests.support.screens import normalized

_MORE = """
ROWS += [Row("d", 1), Row("a", 5)]
"""


@pytest.fixture
def job(cli: CliFixture) -> CliFixture:
    """A job with a savepoint, after which a row has changed one key, and another row has added one."""
    cli.run()
    assert invoke("savepoint", "create", "--job-root", cli.root, "--name", "before", "--from-head").exit_code == 0
    cli.job.write_text(cli.job.read_text().replace("\n\ndef source", f"{_MORE}\n\ndef source"))
    cli.run()
    return cli


def test_the_screens_match_the_golden_files(job: CliFixture, golden: SnapshotAssertion) -> None:
    steps = [
        ("before", "latest"),
        ("latest", "before", "--keys", "--count-all"),
        ("before", "latest", "--keys", "--limit", "1"),
        ("latest", "latest"),
    ]
    shown = ""
    for words in steps:
        ended = invoke("diff", *words, "--job-root", job.root)
        assert ended.exit_code == 0, ended.output
        shown += f"$ diff {' '.join(words)}\n{ended.output}"
    assert normalized(shown, folder=job.folder) == golden


def test_the_exit_code_and_the_json_say_whether_the_state_differs(job: CliFixture) -> None:
    with open_snapshot(job.root) as newest:
        newest_id = newest.checkpoint_id
    folder = f"{job.root}/savepoints/{next(p.name for p in (job.folder / 'root' / 'savepoints').iterdir())}"
    differs = invoke("diff", folder, f"{job.root}@{newest_id}", "--exit-code", "--json", "--keys", "--operator", "sum")
    assert differs.exit_code == 1
    found = json.loads(differs.output)
    assert found["keys"] == 2
    assert sorted((row["change"], row["key"], row["old"], row["new"]) for row in found["changes"]) == [
        ("added", ["d"], None, 1),
        ("changed", ["a"], 18, 23),
    ]
    equal = invoke("diff", job.root, job.root, "--exit-code", "--json")
    assert equal.exit_code == 0
    assert json.loads(equal.output)["keys"] == 0


def test_an_unknown_operator_is_an_error_of_the_command_line(job: CliFixture) -> None:
    ended = invoke("diff", job.root, job.root, "--operator", "sums")
    assert (ended.exit_code, "[config]" in ended.output) == (2, True)
