"""The pages of ``ui/``: their component tests, and what happens without Node."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pages
import pytest

ROOT = Path(__file__).resolve().parents[2]


def _run(action: str, path: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "pages.py"), action]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path})


@pytest.mark.long(reason="starts Vitest")
def test_the_component_tests_of_the_pages_pass() -> None:
    if reason := pages.missing():
        pytest.skip(reason)
    done = _run("test", os.environ["PATH"])
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("version", [None, "v18.19.0", "v20.18.9"])
def test_without_a_node_that_is_new_enough_checks_are_skipped_and_a_build_fails(
    tmp_path: Path, version: str | None
) -> None:
    for name in ("node", "npm") if version else ():
        (tmp_path / name).write_text(f"#!/bin/sh\necho {version}\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:/bin" if version else str(tmp_path)
    for action, code in (("check", 0), ("test", 0), ("build", 1)):
        done = _run(action, path)
        assert done.returncode == code
        assert "skipped" in done.stdout and "^20.19" in done.stdout
    ready = _run("ready", path)
    assert ready.returncode == 1 and "^20.19" in ready.stdout
    assert (ROOT / "stateflow" / "ui" / "static" / "index.html").exists()


def test_the_page_and_its_files_name_each_other_relative_to_where_they_are_served() -> None:
    page = (pages.BUNDLES / "index.html").read_text()
    assert 'src="./standalone.js"' in page
    assert "http" not in page


def test_the_bundle_of_the_plugin_takes_react_from_airflow() -> None:
    bundle = (pages.BUNDLES / "plugin.js").read_text()
    for name in ("React", "ReactJSXRuntime", "ReactRouterDOM", "ChakraUI"):
        assert f"globalThis.{name}" in bundle
    # A file that the browser would ask Airflow for.
    assert "import(" not in bundle and 'from"' not in bundle
    assert len(bundle) < 250_000
