"""The plugin is registered once, through its folder, its entry point, or both; Airflow finds the DAGs, quickly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from airflow.sdk.exceptions import AirflowFailException

from stateflow_airflow.failures import BY_ERROR_CODE, PermanentFailure, TransientFailure
from stateflow_airflow.provider_info import get_provider_info
from stateflow_airflow.versions import (
    HAS_RETRY_POLICIES,
    SUPPORTED,
    RetryDecision,
    UnsupportedVersion,
    base_of_bundles,
    require_supported,
    warn_of_untested,
)
from tests.airflow.conftest import REPOSITORY
from tests.support.cli_fixture import invoke

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


@pytest.mark.matrix
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


@pytest.mark.matrix
def test_provider_info_is_what_airflow_expects() -> None:
    import airflow

    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    info: dict[str, Any] = get_provider_info()
    jsonschema.validate(info, schema)
    for group in ("operators", "sensors", "triggers", "hooks"):
        for module in info[group][0]["python-modules"]:
            __import__(module)


GOOD = {name: supported.tested[0] for name, supported in SUPPORTED.items()}
AIRFLOW, PROVIDER = SUPPORTED


@pytest.mark.parametrize(
    ("name", "version"),
    [
        (AIRFLOW, "2.11.0"),
        (AIRFLOW, "3.1.8"),
        (AIRFLOW, "4.0.0"),
        (AIRFLOW, None),
        (PROVIDER, "6.3.3"),
        (PROVIDER, "7.0.0"),
        (PROVIDER, None),
    ],
)
def test_versions_with_which_the_operators_do_not_work_are_refused(name: str, version: str | None) -> None:
    require_supported()
    installed = {key: value for key, value in {**GOOD, name: version}.items() if value}
    with pytest.raises(UnsupportedVersion) as caught:
        require_supported(installed)
    assert (caught.value.distribution, caught.value.installed) == (name, version)
    # Airflow shows the text only.
    assert all(part in str(caught.value) for part in (name, SUPPORTED[name].first, version or ""))


@pytest.mark.parametrize(("name", "version"), [(AIRFLOW, "3.3.9"), (AIRFLOW, "3.9.0"), (PROVIDER, "6.4.0")])
def test_later_versions_that_were_not_tested_are_warnings(name: str, version: str) -> None:
    assert warn_of_untested(GOOD) == []
    require_supported({**GOOD, name: version})
    (warning,) = warn_of_untested({**GOOD, name: version})
    assert all(part in warning for part in (name, version, *SUPPORTED[name].tested))


@pytest.mark.parametrize(("version", "base"), [("3.2.2", "../../"), ("3.3.2", ""), ("3.4.0b2", "")])
def test_the_address_of_a_bundle_begins_where_this_airflow_resolves_it(version: str, base: str) -> None:
    assert base_of_bundles(version) == base


@pytest.mark.matrix
def test_a_permanent_failure_is_not_retried_with_or_without_retry_policies() -> None:
    if HAS_RETRY_POLICIES:
        assert BY_ERROR_CODE.evaluate(PermanentFailure("config", "wrong"), 1, 3) == RetryDecision.fail(
            reason="[config] wrong"
        )
    else:
        assert issubclass(PermanentFailure, AirflowFailException)
        assert not issubclass(TransientFailure, AirflowFailException)


# -- the DAGs of this repository --------------------------------------------------------------------------------------


FILES = sorted(path.stem for path in (REPOSITORY / "dags").glob("*.py"))
HEAVY = {"pyspark", "rocksdict", "obstore", "pyarrow", "pandas", "deltalake", "stateflow"}

LOAD_DAGS = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
from airflow.models.serialized_dag import SerializedDagModel
from airflow.serialization.serialized_objects import DagSerialization
before = set(sys.modules)
bag = DagBag(sys.argv[1])
runs = {dag.dag_id: dag.get_task("run") for dag in bag.dags.values() if dag.task_ids == ["run"]}
print(json.dumps({
    "errors": bag.import_errors,
    "seconds": {stat.file: stat.duration.total_seconds() for stat in bag.dagbag_stats},
    "modules": sorted({name.split(".")[0] for name in set(sys.modules) - before}),
    "dags": {dag.dag_id: [dag.fileloc, dag.catchup, dag.max_active_runs] for dag in bag.dags.values()},
    "versions": {dag.dag_id: SerializedDagModel.hash(DagSerialization.to_dict(dag)) for dag in bag.dags.values()},
    "runs": {name: {"job": run.job, "root": run.job_root, "settings": run.settings} for name, run in runs.items()},
}))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Airflow's folder, which is part of a serialized DAG."""
    return str(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def loaded(home: str) -> dict[str, Any]:
    return _load(home)


def _load(home: str, **more: str) -> dict[str, Any]:
    environment = {**os.environ, "AIRFLOW_HOME": home, "PYTHONPATH": str(REPOSITORY / "plugins"), **more}
    command = [sys.executable, "-W", "ignore", "-c", LOAD_DAGS, str(REPOSITORY / "dags")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_every_file_is_one_family_that_runs_one_at_a_time_and_never_catches_up(loaded: dict[str, Any]) -> None:
    assert loaded["errors"] == {}
    folder = REPOSITORY / "dags"
    assert loaded["dags"] == {
        f"{name}{suffix}": [str(folder / f"{name}.py"), False, 1]
        for name in FILES
        for suffix in ("", "_recovery", "_retention", "_savepoint")
    }
    # What Airflow itself has loaded before it looks at the files does not count for them.
    assert not HEAVY & set(loaded["modules"])
    assert sorted(loaded["seconds"]) == [f"{name}.py" for name in FILES]
    assert all(seconds < 1 for seconds in loaded["seconds"].values()), loaded["seconds"]


@pytest.mark.slow(reason="loads all DAGs in another process once more")
def test_another_process_makes_no_new_version_of_a_dag(loaded: dict[str, Any], home: str) -> None:
    """Nor does a savepoint in between: a DAG file does not import the library that reads job roots."""
    again = _load(home, PYTHONHASHSEED="4711")
    assert again["versions"] == loaded["versions"] and len(again["versions"]) == 4 * len(FILES)


@pytest.mark.parametrize("name", FILES)
def test_a_dag_passes_the_settings_that_its_job_reads_and_no_others(loaded: dict[str, Any], name: str) -> None:
    run = loaded["runs"][name]
    # As a form that was sent as it is makes it.
    given = run["settings"] | {"run.drain": "false"}
    settings = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
    done = invoke("explain", run["job"], *settings, "--no-spark", "--json")
    found = json.loads(done.stdout)
    assert found["job"] == name
    # The demo makes the folder of the flights.
    assert [p["code"] for p in found["problems"] if "landing" not in p["message"]] == [], done.stderr
    # No setting of the family is one that the job does not read.
    assert found["warnings"] == []
