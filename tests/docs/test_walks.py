"""``scripts/walks.py`` finds each walk in the code as it is."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.support.processes import ROOT


def test_each_walk_enters_files() -> None:
    done = subprocess.run([sys.executable, "scripts/walks.py"], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    walks = json.loads(done.stdout)
    assert len(walks) == 4 and all(walk["files"] > 10 for walk in walks.values())
