"""Where figures go: one JSON file per benchmark, naming commit and machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def write_result(name: str, figures: dict[str, Any]) -> Path:
    """Writes ``results/<name>.json`` and returns its path."""
    return _write(name, {**figures, **stamp()})


def merge_result(name: str, figures: dict[str, Any], groups: dict[str, dict[str, Any]]) -> Path:
    """Writes `figures`, and members of groups, into what the file has: what is not measured now stays as it was.

    The caller adds a `stamp` to what was measured.
    """
    path = RESULTS / f"{name}.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    merged = {group: {**before.pop(group, {}), **members} for group, members in groups.items()}
    return _write(name, {**before, **figures, **merged})


def stamp() -> dict[str, Any]:
    """When, of which commit and on what machine figures are."""
    return {"at": datetime.now(UTC).isoformat(timespec="seconds"), "commit": _commit(), "machine": _machine()}


def _write(name: str, document: dict[str, Any]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(document, indent=2) + "\n")
    return path


def _commit() -> str:
    """The commit that was measured; ``-dirty`` when something else than results is changed."""
    commit = _git("rev-parse", "--short=12", "HEAD") or "unknown"
    changed = _git("status", "--porcelain", "--untracked-files=no")
    written = (f"benchmarks/{RESULTS.name}/", "docs/scoreboard.")
    others = [line for line in changed.splitlines() if not any(name in line for name in written)]
    return f"{commit}-dirty" if others else commit


def _git(*arguments: str) -> str:
    found = subprocess.run(["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return found.stdout.strip()


def _machine() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(memory, 1),
        "cpu": _cpu(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_1m": round(os.getloadavg()[0], 2),
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
