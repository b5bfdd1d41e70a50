"""The Docker files, as far as they can be checked without an engine: nothing is built or started here."""

from __future__ import annotations

import importlib.util
import re
import runpy
import shlex
import shutil
import tomllib
from pathlib import Path
from typing import Any

import click
import image_digests
import pytest
import yaml

from stateflow.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions with their arguments, comments removed and continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (DOCKER / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines if line.strip()]


def arguments(instruction: str) -> list[str]:
    return [rest for name, rest in instructions() if name == instruction]


def pins() -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / "requirements.txt").read_text(), flags=re.MULTILINE))


def airflow_options() -> set[str]:
    """Every option of Airflow's configuration, and of this project's provider, as the variable that sets it."""
    # Airflow is not imported: that writes a configuration file into HOME.
    spec = importlib.util.find_spec("airflow")
    assert spec is not None and spec.submodule_search_locations
    template = Path(next(iter(spec.submodule_search_locations))) / "config_templates" / "config.yml"
    provider = runpy.run_path(str(ROOT / "plugins" / "stateflow_airflow" / "provider_info.py"))
    sections = yaml.safe_load(template.read_text()) | provider["get_provider_info"]().get("config", {})
    return {f"AIRFLOW__{name}__{option}".upper() for name, section in sections.items() for option in section["options"]}


def required_variables(text: str) -> set[str]:
    return set(re.findall(r"\$\{(\w+):\?", text))


# --- Dockerfile ------------------------------------------------------------------------------------------------------


def test_every_image_that_is_not_built_here_is_taken_by_a_digest_without_a_default() -> None:
    bases = arguments("FROM")
    taken = [service["image"] for service in SERVICES.values() if "build" not in service]
    variables = [re.search(r"@\$\{(\w+)(:\?[^}]+)?\}$", image) for image in [*bases, *taken]]
    assert len(variables) == 2 and all(variables)
    declared = arguments("ARG")
    for image, found in zip([*bases, *taken], variables, strict=True):
        assert found is not None
        # Docker refuses an empty digest; Compose does so by `:?`.
        assert found[1] in declared if image in bases else found[2], image
    assert {found[1] for found in variables if found} == image_digests.images(DOCKER).keys()
    build = COMPOSE["x-airflow"]["build"]["args"]
    assert required_variables(build["AIRFLOW_DIGEST"]) == {"AIRFLOW_DIGEST"}


def test_the_lock_file_of_images_has_what_the_registry_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("Dockerfile", "compose.yaml"):
        shutil.copy(DOCKER / name, tmp_path)
    monkeypatch.setattr(image_digests, "DOCKER", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    docker = tmp_path / "docker"
    given = "sha256:" + "0123456789abcdef" * 4
    docker.write_text(
        f"""#!/bin/sh\n[ "$1 $2 $3" = "buildx imagetools inspect" ] && echo '{{"digest": "{given}"}}'\n"""
    )
    docker.chmod(0o755)
    assert image_digests.main() == 0
    lines = (tmp_path / image_digests.LOCK).read_text().splitlines()
    assert {f"AIRFLOW_DIGEST={given}", f"POSTGRES_DIGEST={given}"} <= set(lines)
    # A server that answers badly, or a missing docker, does not change the file.
    for program in ('echo \'{"digest": "sha256:0"}\'', "echo x", "exit 1"):
        docker.write_text(f"#!/bin/sh\n{program}\n")
        assert image_digests.main() == 1
        assert image_digests.LOCK in capfd.readouterr().err
    assert (tmp_path / image_digests.LOCK).read_text().splitlines() == lines


def test_neither_pip_nor_the_image_runs_as_root() -> None:
    user = "root"
    for name, rest in instructions():
        user = rest if name == "USER" else user
        assert not (name == "RUN" and "pip install" in rest and user == "root")
    assert user not in {"root", "0", "0:0"}


def test_everything_that_is_copied_exists_and_is_sent_to_the_engine() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for rest in arguments("COPY"):
        *sources, _target = [word for word in rest.split() if not word.startswith("--")]
        for source in sources:
            assert (ROOT / source).exists(), source
            assert source in allowed, f".dockerignore leaves out {source}"


def test_requirements_are_installed_from_the_pinned_file_and_the_project_changes_no_version() -> None:
    installs = [part for rest in arguments("RUN") for part in rest.split("&&") if "pip install" in part]
    locked = [rest.split()[-1] for rest in installs if "--require-hashes" in rest]
    assert [Path(file).name for file in locked] == ["requirements-build.txt", "requirements.txt"]
    (own,) = [rest for rest in installs if "--require-hashes" not in rest]
    assert "--no-deps" in own and own.endswith("/opt/stateflow/source")
    assert all("--no-build-isolation" in rest for rest in installs[1:])
    named = dict(found for rest in installs for found in re.findall(r"([\w.-]+)==([\w.]+)", rest))
    assert named.items() <= pins().items()


# --- compose.yaml ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_a_pinned_image_no_root_and_no_port_for_other_machines(name: str) -> None:
    service = SERVICES[name]
    ours = f"stateflow-airflow:{PROJECT['version']}"
    assert re.match(r"postgres:\d+\.\d+.*@", service["image"]) if name == "postgres" else service["image"] == ours
    user = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", service["user"]).partition(":")[0]
    assert user not in {"", "0", "root"}
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_the_command_of_the_state_server_has_options_and_a_token_that_exist() -> None:
    service = SERVICES["state-server"]
    shell = service["command"][-1].replace("$${STATEFLOW_SERVED_JOB}", service["environment"]["STATEFLOW_SERVED_JOB"])
    program, command, *options = shlex.split(shell.removeprefix("exec "))
    assert (program, command) == ("stateflow", "serve")
    # With the parent: a command keeps the help option that it is first asked for, also in later tests.
    parent = click.Context(main, **main.context_settings)
    given = main.commands["serve"].make_context("serve", options, parent=parent).params
    (published,) = service["ports"]
    assert published.endswith(f":{given['port']}") and given["advertise"] == f"http://state-server:{given['port']}"
    assert f"localhost:{given['port']}/" in service["healthcheck"]["test"][-1]
    # Made at the first start, in a volume that the service has.
    assert f"> {given['token_file']}" in SERVICES["airflow-init"]["command"][-1]
    assert any(str(given["token_file"]).startswith(volume.split(":")[1]) for volume in service["volumes"])


def test_every_variable_sets_an_option_that_airflow_has_and_no_secret_is_written_down() -> None:
    options = airflow_options()
    assert "AIRFLOW__CORE__EXECUTOR" in options and "AIRFLOW__CORE__EXECUTER" not in options
    secret = re.compile("PASSWORD(?!S_FILE)|SECRET|FERNET|SQL_ALCHEMY_CONN")
    for service in SERVICES.values():
        for variable, value in service["environment"].items():
            assert variable in options or not variable.startswith("AIRFLOW__"), variable
            assert not secret.search(variable) or required_variables(value), variable
