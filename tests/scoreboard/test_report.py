"""The scoreboard itself: how rows are played, found wrong, and reported."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.scoreboard.report import Score, headline, page, read, write
from tests.support.processes import ROOT

_ROWS = '''
import os

from tests.scoreboard.row import Round, Row


@Row(2, "sound", plays=(1, 9, 9), mutants=("no-token",))
def test_sound(round_: Round) -> int:
    """A kill.

    It holds.
    """
    assert os.environ.get("STATEFLOW_TEST_MUTANT") != "no-token" or round_.seed < 4, "found"
    return 2


@Row(6, "broken", plays=(1, 4, 9), mutants=("no-fence", "no-list"), within=2, on_spark=True)
def test_broken(round_: Round) -> int:
    """A race.

    It holds as well.
    """
    if round_.seed == 2 or os.environ.get("STATEFLOW_TEST_MUTANT") == "no-list":
        raise OSError(f"lost at {__file__}")
    return 1


def test_no_row() -> None:
    raise AssertionError
'''


def _score(number: int, injected: int) -> Score:
    texts: dict[str, Any] = {
        "fault": "A fault.", "holds": "It holds.", "bug": "A bug.", "tier": "slice", "at": "now", "commit": "abc",
    }  # fmt: skip
    return Score(number=number, on_spark=False, machine="this", injected=injected, rounds=9, found="seed 1", **texts)


def _play(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Plays rows as `make scoreboard` does; the page is in ``docs`` below the folder."""
    (folder / "pytest.ini").touch()
    (folder / "test_rows.py").write_text(_ROWS)
    plugins = ["-p", "tests.scoreboard.conftest", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *plugins, "-c", str(folder / "pytest.ini"), *options, "test_rows.py"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_rows_are_counted_and_violations_name_their_seed_and_the_command_to_repeat_the_round(tmp_path: Path) -> None:
    write(tmp_path / "docs", {"sound": _score(2, 1), "other": _score(9, 1)})
    played = _play(tmp_path, "--tier", "half-hour", "-n", "1", "--rows", "sound,broken")
    assert played.returncode == 1, played.stdout
    sound, broken, other = read(tmp_path / "docs").values()
    assert other == _score(9, 1), "rows that were not played stay"
    assert (sound.number, sound.fault, sound.holds) == (2, "A kill.", "It holds.")
    assert (sound.injected, sound.rounds, sound.violations, sound.tier) == (18, 9, [], "half-hour")
    assert sound.found.startswith("seed 4: AssertionError at test_rows.py:")
    assert (broken.injected, broken.rounds, broken.on_spark) == (3, 4, True)
    assert broken.found == "" and [bool(found) for found in broken.more_bugs.values()] == [True]
    (violation,) = broken.violations
    assert re.fullmatch(r"seed 2: OSError at test_rows\.py:\d+: lost at …", violation)
    assert "make scoreboard ROWS=broken SEED=2" in played.stdout
    assert headline({"sound": sound, "broken": broken}) in played.stdout


def test_the_committed_page_is_that_of_the_committed_scores() -> None:
    assert (ROOT / "docs" / "scoreboard.md").read_text() == page(read(ROOT / "docs"))
