"""The Docker files, as far as they can be checked without an engine: nothing is built or started here."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
SERVICES = {"postgres", "airflow-init", "api-server", "scheduler", "dag-processor", "triggerer"}
# Ends by itself: what waits for it asks whether it ended well.
ONE_SHOT = {"airflow-init"}


def compose() -> dict[str, Any]:
    return yaml.safe_load((DOCKER / "compose.yaml").read_text())


def services() -> dict[str, dict[str, Any]]:
    return compose()["services"]


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions with their arguments, comments removed and continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (DOCKER / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines if line.strip()]


def arguments(instruction: str) -> list[str]:
    return [rest for name, rest in instructions() if name == instruction]


def pins() -> dict[str, str]:
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    return dict(re.match(r"([\w.-]+)==([^\s;]+)", line).groups() for line in lines if "==" in line)


def project_version() -> str:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def package_folder(name: str) -> Path:
    """Where a package is, without importing it: Airflow's import writes a configuration file into HOME."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)))


def airflow_options() -> set[str]:
    """Every option of Airflow's configuration, and of this project's provider, as the variable that sets it."""
    sections = yaml.safe_load((package_folder("airflow") / "config_templates" / "config.yml").read_text())
    spec = importlib.util.spec_from_file_location(
        "provider_info", ROOT / "plugins" / "stateflow_airflow" / "provider_info.py"
    )
    assert spec is not None and spec.loader is not None
    provider = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(provider)
    sections |= provider.get_provider_info().get("config", {})
    return {
        f"AIRFLOW__{section}__{option}".upper()
        for section, content in sections.items()
        for option in content["options"]
    }


def required_variables(text: str) -> set[str]:
    return set(re.findall(r"\$\{(\w+):\?", text))


# --- Dockerfile ------------------------------------------------------------------------------------------------------


def test_the_base_image_is_the_airflow_that_requirements_pin() -> None:
    assert arguments("FROM") == [f"apache/airflow:{pins()['apache-airflow']}-python3.11"]


def test_the_image_does_not_run_as_root() -> None:
    assert arguments("USER")[-1] not in {"root", "0", "0:0"}


def test_pip_never_runs_as_root() -> None:
    user = "root"
    for name, rest in instructions():
        user = rest if name == "USER" else user
        assert not (name == "RUN" and "pip install" in rest and user == "root")


def test_everything_that_is_copied_exists_and_is_sent_to_the_engine() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for rest in arguments("COPY"):
        *sources, _target = [word for word in rest.split() if not word.startswith("--")]
        for source in sources:
            assert (ROOT / source).exists(), source
            assert source in allowed, f".dockerignore leaves out {source}"


def test_requirements_are_installed_from_the_pinned_file() -> None:
    installs = [rest for rest in arguments("RUN") if "pip install" in rest]
    assert any(rest.endswith("requirements.txt") for rest in installs)
    for rest in installs:
        for name, version in re.findall(r"([\w.-]+)==([\w.]+)", rest):
            assert pins()[name] == version


def test_the_project_is_installed_without_choosing_versions_again() -> None:
    assert any("--no-deps" in rest and rest.endswith("/opt/stateflow/source") for rest in arguments("RUN"))


def test_java_is_one_that_spark_supports() -> None:
    assert any(re.search(r"openjdk-(17|21)-jre-headless", rest) for rest in arguments("RUN"))
    assert "JAVA_HOME=/opt/java" in arguments("ENV")


def test_the_project_requires_the_spark_and_airflow_that_are_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [name for extra in project["optional-dependencies"].values() for name in extra]
    for requirement in [*project["dependencies"], *extras]:
        name, exact, version = requirement.partition("==")
        if exact:
            assert pins()[name] == version


# --- compose.yaml ----------------------------------------------------------------------------------------------------


def test_all_services_are_there() -> None:
    assert set(services()) == SERVICES


def test_images_are_pinned() -> None:
    for name, service in services().items():
        tag = service["image"].rpartition(":")[2]
        assert re.match(r"\d+\.\d+", tag), f"{name} uses {service['image']}"


def test_our_image_carries_the_version_of_the_project() -> None:
    ours = {service["image"] for name, service in services().items() if name != "postgres"}
    assert ours == {f"stateflow-airflow:{project_version()}"}


def test_no_service_runs_as_root() -> None:
    for name, service in services().items():
        user = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", service["user"]).partition(":")[0]
        assert user not in {"", "0", "root"}, name


def test_long_running_services_have_health_checks() -> None:
    for name in SERVICES - ONE_SHOT:
        assert services()[name]["healthcheck"]["test"], name


def test_airflow_starts_after_the_database_and_its_migration() -> None:
    for name in SERVICES - ONE_SHOT - {"postgres"}:
        assert services()[name]["depends_on"] == {
            "postgres": {"condition": "service_healthy"},
            "airflow-init": {"condition": "service_completed_successfully"},
        }


def test_every_variable_sets_an_option_that_airflow_has() -> None:
    options = airflow_options()
    for name, service in services().items():
        for variable in service["environment"]:
            if variable.startswith("AIRFLOW__"):
                assert variable in options, f"{name} sets {variable}"


def test_the_check_of_options_knows_a_wrong_one() -> None:
    assert "AIRFLOW__CORE__EXECUTOR" in airflow_options()
    assert "AIRFLOW__CORE__EXECUTER" not in airflow_options()


@pytest.mark.parametrize("word", ["PASSWORD", "SECRET", "FERNET", "SQL_ALCHEMY_CONN"])
def test_no_secret_is_written_down(word: str) -> None:
    for name, service in services().items():
        for variable, value in service["environment"].items():
            if word in variable and not variable.endswith("PASSWORDS_FILE"):
                assert required_variables(value), f"{name} sets {variable} to a fixed value"


def test_required_variables_are_explained_in_the_example() -> None:
    example = (DOCKER / ".env.example").read_text()
    empty = set(re.findall(r"^(\w+)=$", example, flags=re.MULTILINE))
    assert required_variables((DOCKER / "compose.yaml").read_text()) == empty


def test_volumes_are_declared_and_folders_of_this_repository_exist() -> None:
    declared = set(compose()["volumes"])
    for service in services().values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DOCKER / source).exists(), source
            else:
                assert source in declared


def test_volumes_of_stateflow_are_made_in_the_image_for_its_user() -> None:
    made = " ".join(arguments("RUN"))
    for service in services().values():
        for volume in service.get("volumes", []):
            target = volume.split(":")[1]
            if target.startswith("/opt/stateflow/"):
                assert f" {target} " in f"{made} ".replace("\n", " "), target


def test_only_this_machine_reaches_a_port() -> None:
    for service in services().values():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:")
