"""The pages of ``ui/``: their component tests, and what happens without Node."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pages
import pytest

ROOT = Path(__file__).resolve().parents[2]


def _run(action: str, path: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "scripts" / "pages.py"), action]
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


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what builds the pages, with one small page and bundles of it. ESLint and the type check do nothing."""
    if reason := pages.missing():
        pytest.skip(reason)
    for name in ("scripts/pages.py", "ui/package-lock.json", "ui/vite.config.ts", "ui/tsconfig.json", "ui/index.html"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    ui, package = tmp_path / "ui", json.loads((pages.SOURCES / "package.json").read_text())
    package["scripts"]["lint"] = "true"
    (ui / "package.json").write_text(json.dumps(package))
    (ui / "node_modules").symlink_to(pages.SOURCES / "node_modules")
    for folder in ("entries", "generated"):
        (ui / "src" / folder).mkdir(parents=True)
    for entry in ("plugin", "standalone"):
        (ui / "src" / "entries" / f"{entry}.tsx").write_text('document.title = "before";\n')
    document = tmp_path / "docs" / "reference" / "openapi.json"
    document.parent.mkdir(parents=True)
    document.write_text('{"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "paths": {}}')
    done = _run("build", os.environ["PATH"], tmp_path)
    assert done.returncode == 0, done.stdout
    return tmp_path


@pytest.mark.long(reason="builds the bundles of a small page twice with Vite")
def test_the_check_names_each_committed_file_that_differs_from_its_sources(project: Path) -> None:
    # A source, a bundle and the types: of the other files, none is named.
    for changed in ("ui/src/entries/plugin.tsx", "stateflow/ui/static/standalone.js", "ui/src/generated/api.ts"):
        with (project / changed).open("a") as file:
            file.write('document.body.title = "after";\n')
    done = _run("check", os.environ["PATH"], project)
    found = {line.split()[0] for line in done.stdout.splitlines() if line.endswith("run make ui-build")}
    assert found == {f"stateflow/ui/static/{name}.js" for name in ("plugin", "standalone")} | {
        "ui/src/generated/api.ts"
    }
    assert done.returncode == 1, done.stdout


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
