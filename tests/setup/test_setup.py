"""What scripts/setup.sh decides: which Python, which Java, and whether it can continue. Nothing is installed.

The script's functions run in a bash that finds only the commands that a test puts on PATH, most of them fakes.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SETUP = ROOT / "scripts" / "setup.sh"
BASH = shutil.which("bash") or "/bin/bash"
# What the script uses of the system itself.
TOOLS = "cat chmod cmp cp dirname env grep mkdir mktemp mv rm sha256sum tail tee".split()
REQUIREMENTS = ("requirements.txt", "requirements-dev.txt", "pyproject.toml")

pytestmark = pytest.mark.setup


class Machine:
    """A folder that represents a machine: its PATH, its Javas, its user."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin, self.jvm, self.project = folder, folder / "bin", folder / "jvm", folder / "project"
        self.venv = self.project / ".venv"
        servers = self.project / "tests" / "servers"
        for path in (self.bin, self.jvm, servers):
            path.mkdir(parents=True)
        for file in REQUIREMENTS:
            shutil.copy(ROOT / file, self.project)
        (servers / "moto.txt").write_text("moto==1\n")
        for tool in TOOLS:
            (self.bin / tool).symlink_to(str(shutil.which(tool)))
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
        """A Python that only prints its version, and has no venv module; with an empty version it does not run."""
        prints = f'echo "{version} {self.bin}/{name}"' if version else "exit 127"
        self.command(name, f"case $2 in *version_info*) {prints};; *) exit 1;; esac")

    def java(self, home: str, version: int) -> Path:
        """A Java below the folder for Javas; returns its home."""
        path = self.jvm / home
        facts = f'echo "    java.home = {path}" >&2; echo "    java.specification.version = {version}" >&2'
        self.command(str(path / "bin" / "java"), facts)
        return path

    def run(self, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs `script` with the functions of the set-up."""
        where = f'ROOT="{self.project}"; VENV="{self.venv}"; STAMP="$VENV/stamp"; JAVA_HOME_FILE="$VENV/java_home"'
        return subprocess.run(
            [BASH, "-c", f'source "{SETUP}"; {where}; {script}'],
            env={"PATH": str(self.bin), "STATEFLOW_JVM_DIR": str(self.jvm), **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    def requested(self) -> list[str]:
        """What fakes have written to the file `requested`."""
        path = self.folder / "requested"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


# --- Python ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pythons", "wanted"),
    [({"python3": "3.9"}, ""), ({"python3": "3.14"}, ""), ({}, ""), ({"python3.11": "3.11", "mine": "3.10"}, "mine")],
)
def test_without_a_supported_python_the_error_names_all_versions(
    machine: Machine, pythons: Mapping[str, str], wanted: str
) -> None:
    for name, version in pythons.items():
        machine.python(name, version)
    done = machine.run("find_python", STATEFLOW_PYTHON=wanted)
    assert done.returncode == 1
    refused = [wanted, pythons[wanted]] if wanted else pythons.values()
    for datum in ("3.11", "3.12", "3.13", "STATEFLOW_PYTHON=", *refused):
        assert datum in done.stderr


@pytest.mark.parametrize(
    ("pythons", "version", "name"),
    [
        ({"python3": "3.9", "python3.12": "3.12", "python3.13": "3.13"}, "3.12", "python3.12"),
        ({"python3.11": "", "python3": "3.13"}, "3.13", "python3"),
    ],
)
def test_the_first_supported_python_that_runs_is_taken(
    machine: Machine, pythons: Mapping[str, str], version: str, name: str
) -> None:
    for each in pythons.items():
        machine.python(*each)
    assert machine.run("find_python").stdout == f"{version} {machine.bin}/{name}\n"


def test_uv_creates_the_environment_and_without_uv_the_error_names_the_package_to_install(machine: Machine) -> None:
    machine.python("python3.11", "3.11")
    done = machine.run("make_venv")
    assert done.returncode == 1
    assert "python3.11-venv" in done.stderr
    machine.command("uv", 'echo "$*" >&2; mkdir -p "${@: -1}"')
    done = machine.run("make_venv")
    assert done.returncode == 0
    assert f"venv --quiet --python {machine.bin}/python3.11 {machine.venv}" in done.stderr


# --- Java ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [17, 21])
def test_the_java_of_java_home_is_taken_or_else_that_of_the_path_through_its_links(
    machine: Machine, version: int
) -> None:
    machine.java("a-first", 17)
    on_path, named = machine.java("../elsewhere", 21), machine.java("mine", version)
    (machine.bin / "java").symlink_to(on_path / "bin" / "java")
    assert machine.run("find_java", JAVA_HOME=str(named)).stdout == f"{version} {named}\n"
    assert machine.run("find_java").stdout == f"21 {on_path}\n"


@pytest.mark.parametrize("version", [8, 11, 25])
def test_a_java_that_spark_does_not_support_is_passed_over(machine: Machine, version: int) -> None:
    wrong, right = machine.java("a-first", version), machine.java("later", 17)
    (machine.bin / "java").symlink_to(wrong / "bin" / "java")
    assert machine.run("find_java", JAVA_HOME=str(wrong)).stdout == f"17 {right}\n"


@pytest.mark.parametrize("user", [0, 1000])
def test_a_java_that_cannot_be_installed_is_an_error_that_names_what_to_install(machine: Machine, user: int) -> None:
    """The installation fails for root; other users without sudo do not try it."""
    wrong = machine.java("eleven", 11)
    machine.user(user)
    machine.command("apt-get", f'echo "$*" >> {machine.folder}/requested; exit 100')
    machine.command("sudo", "exit 1")
    done = machine.run("find_java")
    assert (done.returncode, bool(machine.requested())) == (1, user == 0)
    before, found, after = done.stderr.partition(str(wrong))
    assert found
    for datum in ("17", "21", "11", "openjdk-17-jre-headless", "JAVA_HOME"):
        assert datum in before + after


@pytest.mark.parametrize("package", ["openjdk-17-jre-headless", "openjdk-21-jre-headless"])
@pytest.mark.parametrize("user", [0, 1000])
def test_root_or_sudo_without_a_password_installs_java(machine: Machine, package: str, user: int) -> None:
    """The package that this Debian has is installed; the other does not exist, as 17 does not in Debian 13."""
    ready = machine.java("waiting", 17).rename(machine.folder / "waiting")
    machine.user(user)
    machine.command("sudo", 'shift; case $1 in true) ;; *) exec "$@";; esac')
    machine.command("apt-get", f'case "$*" in *update*) ;; *{package}) mv {ready} {machine.jvm};; *) exit 100;; esac')
    assert machine.run("find_java").stdout.startswith("17 ")


# --- Repeated set-up -------------------------------------------------------------------------------------------------


@pytest.fixture
def finished(machine: Machine) -> Machine:
    """A machine on which the set-up was completed."""
    home = machine.java("seventeen", 17)
    machine.venv.mkdir()
    (machine.venv / "java_home").write_text(f"{home}\n")
    assert machine.run('fingerprint > "$STAMP"').returncode == 0
    return machine


def test_a_finished_setup_is_not_repeated(finished: Machine) -> None:
    parts = ("fetch_jars", "fetch_servers", "install_browser", "make_class_archive")
    nothing_new = "; ".join(f"{part}() {{ :; }}" for part in parts)
    done = finished.run(f"{nothing_new}; make_venv() {{ fail again; }}; find_java() {{ fail again; }}; main")
    assert (done.returncode, done.stderr) == (0, "")


def _change(file: str) -> Callable[[Machine], object]:
    return lambda machine: (machine.project / file).write_text("# changed\n")


@pytest.mark.parametrize(
    ("change", "environment"),
    [
        *(pytest.param(_change(file), {}, id=file) for file in REQUIREMENTS),
        pytest.param(lambda machine: shutil.rmtree(machine.jvm / "seventeen"), {}, id="no Java"),
        pytest.param(lambda machine: None, {"JAVA_HOME": "/elsewhere"}, id="another Java"),
    ],
)
def test_a_change_repeats_the_setup(
    finished: Machine, change: Callable[[Machine], object], environment: Mapping[str, str]
) -> None:
    assert finished.run("is_up_to_date").returncode == 0
    change(finished)
    assert finished.run("is_up_to_date", **environment).returncode == 1


# --- Optional parts --------------------------------------------------------------------------------------------------


def test_servers_are_downloaded_once_for_each_list_of_versions_and_nothing_of_them_is_run(machine: Machine) -> None:
    wanted = machine.project / "tests" / "servers" / "package.json"
    # The second download fails, and is repeated.
    for code, text, downloads in ((0, "{}", 1), (0, "{}", 1), (1, "{1}", 2), (1, "{1}", 3)):
        machine.command("npm", f'echo "$PWD $*" >> {machine.folder}/requested; exit {code}')
        wanted.write_text(text)
        assert machine.run("fetch_node_servers").returncode == 0
        assert len(machine.requested()) == downloads
    assert machine.requested()[0].startswith(f"{machine.venv}/node install ")
    assert "--ignore-scripts" in machine.requested()[0]


def test_moto_is_downloaded_once_into_a_separate_folder(machine: Machine) -> None:
    install = f'install() {{ echo "$*" >> {machine.folder}/requested; mkdir -p "$2"; }}; find_uv() {{ :; }}; fetch_moto'
    for _ in range(2):
        assert machine.run(install).returncode == 0
    assert machine.requested() == [f"--target {machine.venv}/moto -r {machine.project}/tests/servers/moto.txt"]


def test_the_browser_is_installed_once(machine: Machine) -> None:
    machine.user(0)
    browser = machine.command("chromium", "true")
    browser.rename(machine.folder / "chromium")
    machine.command("apt-get", f'case "$*" in *chromium) mv {machine.folder}/chromium {browser};; esac')
    assert (machine.run("install_browser").returncode, browser.exists()) == (0, True)
    assert machine.run("install_browser").stderr == ""


@pytest.mark.parametrize(
    ("script", "part"),
    [
        ("fetch_node_servers", "npm"),
        ("install() { return 1; }; find_uv() { :; }; fetch_moto", "moto"),
        ("install_browser", "chromium"),
    ],
)
def test_a_machine_without_an_optional_part_continues_with_a_warning(machine: Machine, script: str, part: str) -> None:
    done = machine.run(script)
    assert done.returncode == 0 and part in done.stderr


# --- CI --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("demo", "tests"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_ci_fails_if_either_part_fails_and_ends_with_the_line_of_pytest(
    machine: Machine, demo: int, tests: int
) -> None:
    closing = "12 passed, 3 deselected in 4.56s"
    fails = 'echo "make: *** [Makefile:1: test] Error 1" >&2; exit 2'
    machine.command("make", f'[ "$1" != demo ] || exit {demo}; echo "{closing}"; [ {tests} = 0 ] || {{ {fails}; }}')
    script = [BASH, str(ROOT / ".ci" / "run")]
    done = subprocess.run(script, env={"PATH": str(machine.bin)}, capture_output=True, text=True, check=False)
    assert done.returncode == max(demo, tests)
    assert done.stdout.splitlines()[-1] == closing
