"""Writes ``package-lock.json`` of the test servers and of the pages: the hash of each npm package, and no addresses.

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

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("tests/servers", "ui")
NAME = "package-lock.json"
OPTIONS = "--package-lock-only --omit-lockfile-registry-resolved --ignore-scripts --no-audit --no-fund --silent"


def without_addresses(lock: str) -> str:
    """Returns a lock file without the addresses where packages' authors ask for money."""
    content = json.loads(lock)
    for facts in content["packages"].values():
        facts.pop("funding", None)
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def write_lock(folder: Path, *, upgrade: bool) -> int:
    """Writes the lock file of a folder with a ``package.json``; returns npm's exit code."""
    with tempfile.TemporaryDirectory() as parent:
        # npm writes the folder's name into the file.
        scratch = Path(parent) / folder.name
        scratch.mkdir()
        for name in ("package.json",) if upgrade or not (folder / NAME).exists() else ("package.json", NAME):
            shutil.copy(folder / name, scratch)
        code = subprocess.run(["npm", "install", *OPTIONS.split()], cwd=scratch, check=False).returncode
        if code == 0:
            (folder / NAME).write_text(without_addresses((scratch / NAME).read_text()))
    return code


def main() -> int:
    """Writes the lock files; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="take new versions of indirect requirements")
    given = parser.parse_args()
    return max(write_lock(ROOT / folder, upgrade=given.upgrade) for folder in FOLDERS)


if __name__ == "__main__":
    sys.exit(main())
