"""Processes that fork after they have used a storage."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.scoreboard.forked import REFUSED, WAYS, WORKED
from tests.scoreboard.row import Round, Row, Tier
from tests.servers.running import s3_server
from tests.support.mutants import VARIABLE
from tests.support.processes import ROOT

_PATIENCE = 30


def _play(round_: Round) -> int:
    with s3_server(round_.folder / "s3", "bucket") as variables:
        uris = (str(round_.folder / "posix"), (round_.folder / "other").as_uri(), "s3://bucket/forks")
        for uri in uris:
            for way in WAYS:
                _try(uri, way, {**os.environ, **variables, VARIABLE: round_.plant})
    return len(uris) * len(WAYS)


def _try(uri: str, way: str, environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "tests.scoreboard.forked", uri, way]
    try:
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, timeout=_PATIENCE, check=False)
    except subprocess.TimeoutExpired as e:
        raise AssertionError(f"{uri} {way}: it hangs") from e
    assert done.returncode in (WORKED, REFUSED), f"{uri} {way}: {done.stderr.decode()[-1500:]}"
    if way == "not used before" or "://bucket" not in uri:
        assert done.returncode == WORKED, f"{uri} {way}: refused"


ROWS = [
    Row(
        20,
        "forks",
        f"a fork behind the use of a storage ({', '.join(WAYS)}; POSIX, S3 server)",
        "it works, or says why not; it never hangs, and the parent goes on",
        _play,
        {Tier.SLICE: 0, Tier.HALF_HOUR: 1, Tier.NIGHTLY: 5},
        plant="no-fork-guard",
        plant_rounds=1,
    )
]
