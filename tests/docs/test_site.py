"""The documentation site is built without a warning."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import stateflow
from stateflow import testing
from tests.docs.pages import ROOT


def _run(*command: str) -> None:
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """MkDocs is strict: a broken link, a missing page or an unknown parameter in a docstring fails."""
    _run(sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path))
    assert (tmp_path / "index.html").is_file()
    assert "stateflow run" in (tmp_path / "reference" / "cli.html").read_text()
    pages = "".join(page.read_text() for page in (tmp_path / "reference" / "api").glob("*.html"))
    public = [getattr(package, name) for package in (stateflow, testing) for name in package.__all__]
    assert [p.__name__ for p in public if f'id="{p.__module__}.{p.__name__}"' not in pages] == []
