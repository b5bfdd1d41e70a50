"""The plugin is registered once, through the folder, the entry point, or both; it needs versions that were tried."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from stateflow_airflow.provider_info import get_provider_info
from stateflow_airflow.versions import SUPPORTED, UnsupportedVersion, require_supported
from tests.airflow.conftest import REPOSITORY

ENTRY_POINTS = """\
[airflow.plugins]
stateflow = stateflow_airflow.plugin:StateflowPlugin

[apache_airflow_provider]
provider_info = stateflow_airflow.provider_info:get_provider_info
"""

LOAD = """
import json, sys, warnings
warnings.simplefilter("ignore")
from airflow import plugins_manager
plugins, errors = plugins_manager._get_plugins()
print(json.dumps({
    "plugins": [str(plugin.source) for plugin in plugins if plugin.name == "stateflow"],
    "errors": errors,
    "deadlines": sorted(plugins_manager.get_deadline_references_plugins()),
    "by_stem": [name for name in ("launcher", "hooks", "retry", "plugin", "run") if name in sys.modules],
    "heavy": [name for name in sys.modules if name.split(".")[0] in
              ("pyspark", "rocksdict", "obstore", "pyarrow", "pandas", "deltalake", "stateflow")],
}))
"""


class Site:
    """A site-packages folder with Airflow and all else, where stateflow is installed only if the test installs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for source in (Path(entry) for entry in sys.path if entry.endswith("site-packages")):
            for entry in source.iterdir():
                if "stateflow" not in entry.name and not (folder / entry.name).exists():
                    (folder / entry.name).symlink_to(entry)

    def install(self) -> None:
        metadata = self.folder / "stateflow-0.1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: stateflow\nVersion: 0.1.0\n")
        (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
        (self.folder / "stateflow_airflow").symlink_to(REPOSITORY / "plugins" / "stateflow_airflow")

    def load(self, plugins_folder: Path) -> dict[str, Any]:
        environment = {
            **os.environ,
            "AIRFLOW_HOME": str(self.folder.parent),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(plugins_folder),
            "PYTHONPATH": str(self.folder),
        }
        # -S and another folder: the packages of this Python's own site-packages would come back otherwise, and what a
        # build has left in this repository.
        command, home = [sys.executable, "-S", "-c", LOAD], self.folder.parent
        output = subprocess.run(command, env=environment, cwd=home, check=True, capture_output=True, text=True)
        return dict(json.loads(output.stdout.splitlines()[-1]))


ENTRY_POINT = "stateflow==0.1.0"


@pytest.mark.parametrize(
    ("installed", "source"),
    [(False, "$PLUGINS_FOLDER/stateflow_plugin.py"), (True, ENTRY_POINT)],
    ids=["folder", "both"],
)
@pytest.mark.slow(reason="starts Airflow in a process of its own")
def test_the_plugin_is_registered_once_and_loads_nothing_heavy(tmp_path: Path, installed: bool, source: str) -> None:
    site = Site(tmp_path / "site-packages")
    if installed:
        site.install()
    loaded = site.load(REPOSITORY / "plugins")
    (plugin,) = loaded.pop("plugins")
    assert source in plugin
    reference = "stateflow_airflow.deadlines.LastCheckpointDeadline"
    assert loaded == {"errors": {}, "deadlines": [reference], "by_stem": [], "heavy": []}


def test_provider_info_is_what_airflow_expects() -> None:
    import airflow

    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    info: dict[str, Any] = get_provider_info()
    jsonschema.validate(info, schema)
    for group in ("operators", "sensors", "triggers", "hooks"):
        for module in info[group][0]["python-modules"]:
            __import__(module)


GOOD = {name: first for name, (first, _) in SUPPORTED.items()}


@pytest.mark.parametrize("name", SUPPORTED)
@pytest.mark.parametrize("version", ["2.11.0", "3.3.1", "3.4.0", "4.0.0", "6.3.3", "6.4.0", None])
def test_versions_that_were_never_tried_are_refused(name: str, version: str | None) -> None:
    require_supported()
    installed = {key: value for key, value in {**GOOD, name: version}.items() if value}
    with pytest.raises(UnsupportedVersion) as caught:
        require_supported(installed)
    assert (caught.value.distribution, caught.value.installed) == (name, version)
    # Airflow shows the text only.
    assert all(part in str(caught.value) for part in (name, *SUPPORTED[name], version or ""))
