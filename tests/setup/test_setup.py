"""What scripts/setup.sh decides: which Python, which Java, and whether it can go on. Nothing is installed.

The script's functions run in a bash that finds only the commands a test puts on PATH, most of them made up.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tomllib
import zipfile
import zipimport
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SETUP = ROOT / "scripts" / "setup.sh"
BASH = shutil.which("bash") or "/bin/bash"
# What the script uses of the system itself.
TOOLS = ("cat", "chmod", "dirname", "env", "grep", "mkdir", "rm", "sha256sum", "tee", "mktemp", "tail", "cmp", "cp")
REQUIREMENTS = ("requirements.txt", "requirements-dev.txt", "pyproject.toml")


class Machine:
    """A folder that stands for a machine: its PATH, its Javas, its user."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.jvm = folder / "jvm"
        self.project = folder / "project"
        self.venv = self.project / ".venv"
        for path in (self.bin, self.jvm, self.project):
            path.mkdir()
        for file in REQUIREMENTS:
            shutil.copy(ROOT / file, self.project)
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found is not None
            (self.bin / tool).symlink_to(found)
        self.user(1000)

    def command(self, name: str, script: str) -> Path:
        path = self.bin / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!{BASH}\n{script}\n")
        path.chmod(0o755)
        return path

    def user(self, number: int) -> None:
        self.command("id", f"echo {number}")

    def python(self, name: str, version: str) -> None:
        """A Python that can print its version, and nothing else: it has no venv module either."""
        path = self.bin / name
        self.command(name, f'case $2 in *version_info*) echo "{version} {path}";; *) exit 1;; esac')

    def java(self, home: str, version: int) -> Path:
        """A Java below the folder for Javas; returns its home."""
        path = self.jvm / home
        self.command(
            str(path / "bin" / "java"),
            f'echo "    java.home = {path}" >&2; echo "    java.specification.version = {version}" >&2',
        )
        return path

    def run(self, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs `script` after the set-up's functions have been read in."""
        where = f'ROOT="{self.project}"; VENV="{self.venv}"; STAMP="$VENV/stamp"; JAVA_HOME_FILE="$VENV/java_home"'
        return subprocess.run(
            [BASH, "-c", f'source "{SETUP}"; {where}; {script}'],
            env={"PATH": str(self.bin), "STATEFLOW_JVM_DIR": str(self.jvm), **environment},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


# --- Python ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["3.9", "3.14", ""])
def test_without_a_supported_python_the_error_names_all_versions(machine: Machine, version: str) -> None:
    if version:
        machine.python("python3", version)
    done = machine.run("find_python")
    assert done.returncode == 1
    for datum in ("3.11", "3.12", "3.13", version, "STATEFLOW_PYTHON="):
        assert datum in done.stderr


def test_among_several_the_first_supported_one_is_taken(machine: Machine) -> None:
    machine.python("python3", "3.9")
    machine.python("python3.12", "3.12")
    machine.python("python3.13", "3.13")
    assert machine.run("find_python").stdout == f"3.12 {machine.bin}/python3.12\n"


def test_a_command_that_does_not_run_is_passed_over(machine: Machine) -> None:
    machine.command("python3.11", 'echo "pyenv: python3.11: command not found" >&2; exit 127')
    machine.python("python3", "3.13")
    assert machine.run("find_python").stdout == f"3.13 {machine.bin}/python3\n"


def test_a_python_that_was_named_is_the_only_candidate(machine: Machine) -> None:
    machine.python("python3.11", "3.11")
    machine.python("mine", "3.10")
    done = machine.run("find_python", STATEFLOW_PYTHON="mine")
    assert done.returncode == 1
    assert "3.10" in done.stderr and "mine" in done.stderr


def test_without_a_venv_module_the_error_names_the_package_that_has_it(machine: Machine) -> None:
    machine.python("python3.11", "3.11")
    done = machine.run("make_venv")
    assert done.returncode == 1
    assert "python3.11-venv" in done.stderr


def test_uv_makes_the_environment_where_it_is_installed(machine: Machine) -> None:
    machine.python("python3.11", "3.11")
    machine.command("uv", 'echo "$*" >&2; mkdir -p "${@: -1}"')
    done = machine.run("make_venv")
    assert done.returncode == 0
    assert f"venv --quiet --python {machine.bin}/python3.11 {machine.venv}" in done.stderr


# --- Java ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [17, 21])
def test_the_java_that_java_home_names_is_taken(machine: Machine, version: int) -> None:
    machine.java("a-first", 17)
    home = machine.java("mine", version)
    assert machine.run("find_java", JAVA_HOME=str(home)).stdout == f"{version} {home}\n"


@pytest.mark.parametrize("version", [8, 11, 25])
def test_a_java_that_spark_does_not_support_is_passed_over(machine: Machine, version: int) -> None:
    wrong = machine.java("a-first", version)
    right = machine.java("later", 17)
    (machine.bin / "java").symlink_to(wrong / "bin" / "java")
    assert machine.run("find_java", JAVA_HOME=str(wrong)).stdout == f"17 {right}\n"


def test_the_java_on_path_is_found_through_its_links(machine: Machine) -> None:
    home = machine.java("../elsewhere", 21)
    (machine.bin / "java").symlink_to(home / "bin" / "java")
    assert machine.run("find_java").stdout == f"21 {home}\n"


def test_without_java_and_without_root_the_error_names_what_to_install(machine: Machine) -> None:
    wrong = machine.java("eleven", 11)
    machine.command("apt-get", f"touch {machine.folder}/called")
    machine.command("sudo", "exit 1")
    done = machine.run("find_java")
    assert done.returncode == 1
    before, found, after = done.stderr.partition(str(wrong))
    assert found
    for datum in ("17", "21", "11", "openjdk-17-jre-headless", "JAVA_HOME"):
        assert datum in before + after
    assert not (machine.folder / "called").exists()


@pytest.mark.parametrize("package", ["openjdk-17-jre-headless", "openjdk-21-jre-headless"])
@pytest.mark.parametrize("user", [0, 1000])
def test_root_or_sudo_without_a_password_installs_java(machine: Machine, package: str, user: int) -> None:
    """The package that this Debian has is installed; the other is not there, as 17 is missing from Debian 13."""
    home = machine.java("waiting", 17)
    ready = home.rename(machine.folder / "waiting")
    machine.user(user)
    machine.command("sudo", 'shift; case $1 in true) ;; *) exec "$@";; esac')
    machine.command("mv", f'exec {shutil.which("mv")} "$@"')
    machine.command("apt-get", f'case "$*" in *update*) ;; *{package}) mv {ready} {machine.jvm};; *) exit 100;; esac')
    assert machine.run("find_java").stdout.startswith("17 ")


def test_root_whose_installation_fails_gets_the_same_error(machine: Machine) -> None:
    machine.user(0)
    machine.command("apt-get", "exit 100")
    done = machine.run("find_java")
    assert done.returncode == 1
    assert "openjdk-17-jre-headless" in done.stderr


# --- Doing it only once ----------------------------------------------------------------------------------------------


def finished(machine: Machine) -> None:
    """A machine on which the set-up was completed."""
    home = machine.java("seventeen", 17)
    machine.venv.mkdir()
    (machine.venv / "java_home").write_text(f"{home}\n")
    assert machine.run('fingerprint > "$STAMP"').returncode == 0


def test_a_finished_setup_is_not_done_again(machine: Machine) -> None:
    finished(machine)
    parts = ("fetch_jars", "fetch_servers", "install_browser", "make_class_archive")
    nothing_new = "; ".join(f"{part}() {{ :; }}" for part in parts)
    done = machine.run(f"{nothing_new}; make_venv() {{ fail again; }}; find_java() {{ fail again; }}; main")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("file", REQUIREMENTS)
def test_another_requirement_means_another_setup(machine: Machine, file: str) -> None:
    finished(machine)
    assert machine.run("is_up_to_date").returncode == 0
    with (machine.project / file).open("a") as changed:
        changed.write("# changed\n")
    assert machine.run("is_up_to_date").returncode == 1


def test_a_java_that_is_gone_means_another_setup(machine: Machine) -> None:
    finished(machine)
    shutil.rmtree(machine.jvm / "seventeen")
    assert machine.run("is_up_to_date").returncode == 1


def test_another_java_home_means_another_setup(machine: Machine) -> None:
    finished(machine)
    assert machine.run("is_up_to_date", JAVA_HOME="/elsewhere").returncode == 1


# --- The JARs --------------------------------------------------------------------------------------------------------


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def jars() -> ModuleType:
    return _script("fetch_jars")


def test_delta_is_asked_for_by_the_version_of_spark_and_its_own(jars: ModuleType) -> None:
    assert jars.delta() == f"io.delta:delta-spark_4.2_2.13:{pins('requirements.txt')['delta-spark']}"


def test_an_hdfs_is_of_the_version_of_its_client(jars: ModuleType) -> None:
    minicluster, _, hadoop = jars.hdfs().rpartition(":")
    assert minicluster == "org.apache.hadoop:hadoop-client-minicluster"
    assert (jars.spark_jars() / f"hadoop-client-runtime-{hadoop}.jar").exists()


def test_jars_that_spark_brings_itself_are_left_out(jars: ModuleType) -> None:
    delta = Path("io.delta_delta-spark_4.2_2.13-4.4.0.jar")
    parquet = Path("org.apache.parquet_parquet-column-1.16.0.jar")
    assert jars.missing_in_spark([delta, parquet]) == [delta]


def test_a_folder_is_complete_only_with_every_file_in_its_size(jars: ModuleType, tmp_path: Path) -> None:
    folder, scratch = tmp_path / "jars", tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "a-1.jar").write_bytes(b"123")
    assert not jars.is_complete(folder, "x:y:1")
    jars.keep([scratch / "a-1.jar"], "x:y:1", folder, scratch)
    assert jars.is_complete(folder, "x:y:1")
    assert not jars.is_complete(folder, "x:y:2")
    (folder / "a-1.jar").write_bytes(b"12")
    assert not jars.is_complete(folder, "x:y:1")


# --- The archive of classes ------------------------------------------------------------------------------------------


def test_an_archive_is_made_once_for_a_java_and_a_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, made = _script("class_archive"), []
    archive = tmp_path / "spark.jsa"

    def make() -> str:
        made.append(archive.write_bytes(b"x"))
        return ""

    for name, value in {"ARCHIVE": archive, "STAMP": tmp_path / "made", "create_archive": make}.items():
        monkeypatch.setattr(script, name, value)
    assert [script.main(), script.main(), len(made)] == [0, 0, 1]
    monkeypatch.setattr(script, "version", lambda package: "another")
    assert [script.main(), script.main(), len(made)] == [0, 0, 2]
    archive.unlink()
    monkeypatch.setattr(script, "create_archive", lambda: "it did not work")
    assert [script.main(), script.main()] == [1, 1]


# --- PySpark's archives -----------------------------------------------------------------------------------------------


def test_an_archive_is_compiled_once_and_another_python_takes_the_sources(tmp_path: Path) -> None:
    script, archive = _script("compile_pyspark"), tmp_path / "package.zip"
    with zipfile.ZipFile(archive, "w") as new:
        new.writestr("package/__init__.py", "")
        new.writestr("package/inner.py", "where = __file__\n")
    assert [script.compile_archive(archive), script.compile_archive(archive)] == [True, False]
    code = zipimport.zipimporter(f"{archive}/package").get_code("package.inner")
    assert code.co_filename == f"{archive}/package/inner.py"
    with zipfile.ZipFile(archive) as compiled:
        (is_compiled,) = (n for n in compiled.namelist() if n == "package/inner.pyc")
        others = {name: compiled.read(name) for name in compiled.namelist()}
    others[is_compiled] = b"abcd" + others[is_compiled][4:]
    with zipfile.ZipFile(archive, "w") as of_another_python:
        for name, data in others.items():
            of_another_python.writestr(name, data)
    zipimport.zipimporter(f"{archive}/package").invalidate_caches()
    assert zipimport.zipimporter(f"{archive}/package").get_code("package.inner").co_names == code.co_names


# --- Servers from npm ------------------------------------------------------------------------------------------------


def _servers(machine: Machine) -> Path:
    wanted = machine.project / "tests" / "servers" / "package.json"
    wanted.parent.mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "servers" / "package.json", wanted)
    return wanted


def test_servers_are_fetched_once_and_nothing_of_them_is_run(machine: Machine) -> None:
    wanted = _servers(machine)
    machine.command("npm", f'echo "$PWD $*" >> {machine.folder}/asked')
    for _ in range(2):
        assert machine.run("fetch_node_servers").returncode == 0
    (asked,) = (machine.folder / "asked").read_text().splitlines()
    assert asked.startswith(f"{machine.venv}/node install ") and "--ignore-scripts" in asked
    wanted.write_text(wanted.read_text().replace("3.35.0", "3.36.0"))
    machine.run("fetch_node_servers")
    assert len((machine.folder / "asked").read_text().splitlines()) == 2


def test_a_machine_without_npm_goes_on_with_a_warning(machine: Machine) -> None:
    _servers(machine)
    done = machine.run("fetch_node_servers")
    assert done.returncode == 0 and "npm" in done.stderr


def test_a_fetch_that_fails_is_tried_again(machine: Machine) -> None:
    _servers(machine)
    machine.command("npm", f"echo again >> {machine.folder}/asked; exit 1")
    for _ in range(2):
        assert machine.run("fetch_node_servers").returncode == 0
    assert len((machine.folder / "asked").read_text().splitlines()) == 2


# --- A browser -------------------------------------------------------------------------------------------------------


def test_the_browser_is_installed_once(machine: Machine) -> None:
    machine.user(0)
    there = machine.command("chromium", "true")
    there.rename(machine.folder / "chromium")
    machine.command("mv", f'exec {shutil.which("mv")} "$@"')
    machine.command("apt-get", f'case "$*" in *chromium) mv {machine.folder}/chromium {there};; esac')
    first = machine.run("install_browser")
    assert (first.returncode, there.exists()) == (0, True)
    assert machine.run("install_browser").stderr == ""


def test_a_machine_without_a_browser_goes_on_with_a_warning(machine: Machine) -> None:
    machine.user(1000)
    done = machine.run("install_browser")
    assert done.returncode == 0 and "chromium" in done.stderr


# --- A server from PyPI ----------------------------------------------------------------------------------------------


def test_moto_is_fetched_once_into_a_folder_of_its_own(machine: Machine) -> None:
    wanted = machine.project / "tests" / "servers" / "moto.txt"
    wanted.parent.mkdir(parents=True)
    wanted.write_text("moto==1\n")
    asking = f'install() {{ echo "$*" >> {machine.folder}/asked; mkdir -p "$2"; }}; find_uv() {{ :; }}; fetch_moto'
    for _ in range(2):
        assert machine.run(asking).returncode == 0
    assert (machine.folder / "asked").read_text() == f"--target {machine.venv}/moto -r {wanted}\n"


def test_a_machine_without_moto_goes_on_with_a_warning(machine: Machine) -> None:
    done = machine.run("install() { return 1; }; find_uv() { :; }; fetch_moto")
    assert done.returncode == 0 and "moto" in done.stderr


# --- CI --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("demo", "tests", "expected"), [(0, 0, 0), (1, 0, 1), (0, 1, 1), (1, 1, 1)], ids=lambda code: str(code)
)
def test_ci_fails_when_either_part_does_and_ends_with_pytest(
    machine: Machine, demo: int, tests: int, expected: int
) -> None:
    closing = "12 passed, 3 deselected in 4.56s"
    machine.command(
        "make",
        f'if [ "$1" = demo ]; then exit {demo}; fi; echo "{closing}"; '
        f'if [ {tests} != 0 ]; then echo "make: *** [Makefile:1: test] Error 1" >&2; exit 2; fi',
    )
    done = subprocess.run(
        [BASH, str(ROOT / ".ci" / "run")], env={"PATH": str(machine.bin)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == expected
    assert done.stdout.splitlines()[-1] == closing


def test_scripts_can_be_executed() -> None:
    for script in (SETUP, ROOT / ".ci" / "run"):
        assert os.access(script, os.X_OK), script


# --- Pins ------------------------------------------------------------------------------------------------------------


def pins(file: str) -> dict[str, str]:
    found = re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / file).read_text(), flags=re.MULTILINE)
    return dict(found)


@pytest.mark.parametrize("file", ["requirements.txt", "requirements-dev.txt"])
def test_requirements_are_pins_and_nothing_else(file: str) -> None:
    """No address of an index, no path of the machine on which they were compiled."""
    for line in (ROOT / file).read_text().splitlines():
        assert line.startswith("#") or re.fullmatch(r"[a-z0-9][\w.-]*==[\w.]+( ; .+)?", line), line


def test_development_uses_the_versions_that_are_deployed() -> None:
    deployed = pins("requirements.txt")
    shared = {name: version for name, version in pins("requirements-dev.txt").items() if name in deployed}
    assert shared.items() <= deployed.items()


@pytest.mark.parametrize("kind", ["requirements", "requirements-dev"])
def test_every_direct_requirement_is_pinned(kind: str) -> None:
    direct = re.findall(r"^([\w.-]+)", (ROOT / f"{kind}.in").read_text(), flags=re.MULTILINE)
    assert {name.lower() for name in direct if name != "-c"} <= pins(f"{kind}.txt").keys()


def test_pyspark_and_its_client_share_files_and_so_a_version() -> None:
    assert pins("requirements.txt")["pyspark"] == pins("requirements.txt")["pyspark-client"]


def test_the_project_is_built_with_the_setuptools_that_is_pinned() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]
    assert build["requires"] == [f"setuptools=={pins('requirements-dev.txt')['setuptools']}"]
