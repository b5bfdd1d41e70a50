"""Writes ``package-lock.json`` of the test servers: each npm package with its version and hash, and no addresses.

python scripts/lock_npm.py [--upgrade]
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SERVERS = Path(__file__).resolve().parent.parent / "tests" / "servers"
NAME = "package-lock.json"
OPTIONS = "--package-lock-only --omit-lockfile-registry-resolved --ignore-scripts --no-audit --no-fund --silent"


def without_addresses(lock: str) -> str:
    """Returns a lock file without the addresses where packages' authors ask for money."""
    content = json.loads(lock)
    for facts in content["packages"].values():
        facts.pop("funding", None)
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def main() -> int:
    """Writes the lock file; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="take new versions of indirect requirements")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # npm writes the folder's name into the file.
        scratch = Path(folder) / SERVERS.name
        scratch.mkdir()
        shutil.copy(SERVERS / "package.json", scratch)
        if not given.upgrade:
            shutil.copy(SERVERS / NAME, scratch)
        code = subprocess.run(["npm", "install", *OPTIONS.split()], cwd=scratch, check=False).returncode
        if code == 0:
            (SERVERS / NAME).write_text(without_addresses((scratch / NAME).read_text()))
        return code


if __name__ == "__main__":
    sys.exit(main())
