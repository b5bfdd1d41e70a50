"""Builds, checks and tests the pages of ``ui/`` with Node. Where Node is missing it says so, and does nothing.

``python scripts/pages.py build`` writes the types of the API's answers and the bundles; ``check`` runs ESLint and the
type check, and compares types and bundles with their sources; ``test`` runs the component tests. ``node`` prints why
this machine's Node does not fit, and ends with 1 if so; ``ready`` does the same if the other actions would be skipped.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "ui"
BUNDLES = ROOT / "stateflow" / "ui" / "static"
DOCUMENT = ROOT / "docs" / "reference" / "openapi.json"
TYPES = SOURCES / "src" / "generated" / "api.ts"
_ALTERNATIVE = re.compile(r"(\^|>=)(\d+)(?:\.(\d+))?")


def missing() -> str:
    """Returns why the pages cannot be built here; an empty text if they can."""
    if reason := unfit_node():
        return reason
    installed, lock = SOURCES / "node_modules" / ".installed", SOURCES / "package-lock.json"
    if not installed.exists() or installed.read_bytes() != lock.read_bytes():
        return "their packages are not installed; 'make setup' installs them"
    return ""


def unfit_node() -> str:
    """Returns why Node and npm on PATH are not those that ``engines`` of the pages wants; an empty text if they are."""
    wanted = json.loads((SOURCES / "package.json").read_text())["engines"]["node"]
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            return f"{program} is not installed, and the pages need Node {wanted}"
    try:
        found = subprocess.run(["node", "--version"], capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        # Such as the program of another processor.
        found = ""
    return "" if is_fit(found, wanted) else f"Node is {found or 'broken'}, and the pages need {wanted}"


def is_fit(version: str, wanted: str) -> bool:
    """Returns whether a version of Node, such as v22.13.0, is one of several ranges, such as ``^20.19 || >=24``."""
    numbers = tuple(map(int, re.findall(r"\d+", version)))
    for alternative in wanted.split("||"):
        form = _ALTERNATIVE.fullmatch(alternative.strip())
        assert form is not None, f"engines of ui/package.json: only ^A.B and >=A.B are read, not {alternative!r}"
        oldest = (int(form[2]), int(form[3] or 0))
        if numbers >= oldest and (form[1] == ">=" or numbers[0] == oldest[0]):
            return True
    return False


def run(*command: str, **environment: str) -> int:
    """Runs a program in the folder of the sources, prints its output if it fails, and returns its exit code."""
    done = subprocess.run(
        command,
        cwd=SOURCES,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stdout)
    return done.returncode


def write_types(path: Path) -> int:
    """Writes the types of the API's answers, which follow from its document."""
    return run("npx", "--no-install", "openapi-typescript", str(DOCUMENT), "--output", str(path))


def write_bundles(folder: Path) -> int:
    """Writes the bundles."""
    return run("npm", "run", "--silent", "build", STATEFLOW_PAGES=str(folder))


def build() -> int:
    """Writes types and bundles where they belong."""
    shutil.rmtree(BUNDLES, ignore_errors=True)
    return write_types(TYPES) or write_bundles(BUNDLES)


def check() -> int:
    """Checks the sources, and that the committed types and bundles are those of the sources."""
    if code := run("npm", "run", "--silent", "lint"):
        return code
    with tempfile.TemporaryDirectory() as scratch:
        types, bundles = Path(scratch) / TYPES.name, Path(scratch) / BUNDLES.name
        if code := write_types(types) or write_bundles(bundles):
            return code
        outdated = [] if types.read_bytes() == TYPES.read_bytes() else [TYPES]
        names = {path.name for folder in (bundles, BUNDLES) for path in folder.glob("*")}
        outdated += [BUNDLES / name for name in sorted(names) if _content(bundles / name) != _content(BUNDLES / name)]
    for path in outdated:
        print(f"{path.relative_to(ROOT)} is not what its sources give: run make ui-build")
    return min(len(outdated), 1)


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def test() -> int:
    """Runs the component tests."""
    return run("npm", "run", "--silent", "test")


def tell(why: Callable[[], str]) -> int:
    """Prints why something is missing; returns 1, and 0 if nothing is."""
    if reason := why():
        print(reason)
    return 1 if reason else 0


def main() -> int:
    """Runs the named action; returns the exit code."""
    actions = {"build": build, "check": check, "test": test}
    checks = {"node": unfit_node, "ready": missing}
    if sys.argv[1:] not in [[name] for name in (*actions, *checks)]:
        sys.exit(__doc__)
    (action,) = sys.argv[1:]
    if action in checks:
        return tell(checks[action])
    if reason := missing():
        print(f"pages: {action} was skipped: {reason}")
        # Whoever asks for bundles must not believe that there are new ones.
        return 1 if action == "build" else 0
    return actions[action]()


if __name__ == "__main__":
    sys.exit(main())
