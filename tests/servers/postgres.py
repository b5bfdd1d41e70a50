"""A PostgreSQL server: Debian's, on loopback, in a folder of its own."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from tests.servers.running import CANARY, free_port

_BINARIES = "/usr/lib/postgresql"
_USER = "postgres"
_STARTS_WITHIN = 60.0
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    # What the server has written survives its death, though not that of the host.
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "max_connections": "50",
    "autovacuum": "off",
    "log_min_messages": "warning",
    # Clients that need durable commits must say so.
    "synchronous_commit": "off",
    "wal_writer_delay": "10s",
}


@dataclass
class Postgres:
    """A server. `binaries`: folder of its programs. `folder`: of its data. `port`: on loopback."""

    binaries: Path
    folder: Path
    port: int
    password: str = field(default=CANARY, repr=False)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def conninfo(self) -> str:
        return f"host=127.0.0.1 port={self.port} dbname=postgres user={_USER}"

    @property
    def jdbc_url(self) -> str:
        """How Spark connects, without user and password."""
        return f"jdbc:postgresql://127.0.0.1:{self.port}/postgres"

    @property
    def variables(self) -> dict[str, str]:
        return {"PGPASSWORD": self.password}

    def connect(self) -> psycopg.Connection[Any]:
        """A connection that commits each statement."""
        return psycopg.connect(self.conninfo, password=self.password, autocommit=True)

    def execute(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Executes a statement; returns its rows, if any."""
        with contextlib.closing(self.connect()) as connection:
            done = connection.execute(statement.encode(), values or None)
            return done.fetchall() if done.description else []

    def rows(self, table: str) -> list[dict[str, Any]]:
        with contextlib.closing(self.connect()) as connection:
            cursor = connection.cursor(row_factory=psycopg.rows.dict_row)
            return cursor.execute(f"SELECT * FROM {table}".encode()).fetchall()

    def start(self) -> None:
        settings = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
        sockets = ["-c", f"unix_socket_directories={self.folder}"]
        command = [str(self.binaries / "postgres"), "-D", str(self.folder), "-p", str(self.port), *settings, *sockets]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, **_as_user(self.folder))
        self._wait()

    def kill(self) -> None:
        """Kills all processes of the server; nothing that it had not written remains."""
        assert self._process is not None
        family = [psutil.Process(self._process.pid), *psutil.Process(self._process.pid).children(recursive=True)]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        psutil.wait_procs(family[1:], timeout=10)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()

    def sessions(self) -> list[int]:
        found = self.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'stateflow'")
        return [pid for (pid,) in found]

    def waiting(self) -> int:
        found = self.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'stateflow' AND wait_event_type = 'Lock'"
        )
        return int(found[0][0])

    def cut_connections(self) -> int:
        return sum(self.execute("SELECT pg_terminate_backend(%s)", pid)[0][0] for pid in self.sessions())

    def _wait(self) -> None:
        ends = time.monotonic() + _STARTS_WITHIN
        while True:
            try:
                self.connect().close()
                return
            except psycopg.OperationalError as e:
                assert self._process is not None
                if self._process.poll() is not None or time.monotonic() > ends:
                    log = (self.folder / "server.log").read_text(errors="replace")
                    raise AssertionError(f"PostgreSQL did not start: {e}\n{log[-3000:]}") from e
            time.sleep(0.05)


@contextlib.contextmanager
def postgres_server() -> Iterator[Postgres]:
    """A server without tables; the test is skipped if it is not installed."""
    found = sorted(Path(_BINARIES).glob("*/bin/initdb"), key=lambda path: int(path.parts[-3].partition(".")[0]))
    initdb = found[-1] if found else Path(shutil.which("initdb") or "")
    if not initdb.name:
        pytest.skip("no PostgreSQL is installed: sudo apt-get install postgresql")
    # Not in TMPDIR, whose folders the server's user may not be permitted to enter.
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="stateflow-postgres-", dir=memory if os.access(memory, os.W_OK) else "/tmp"))
    server = Postgres(initdb.parent, folder / "data", free_port())
    try:
        _initialize(initdb, folder, server)
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)


def _initialize(initdb: Path, folder: Path, server: Postgres) -> None:
    password = folder / "password"
    password.write_text(server.password)
    server.folder.mkdir(mode=0o700)
    if os.geteuid() == 0:
        user = pwd.getpwnam(_USER)
        for path in (folder, password, server.folder):
            os.chown(path, user.pw_uid, user.pw_gid)
    options = ["-U", _USER, "-A", "scram-sha-256", "--pwfile", str(password), "-E", "UTF8", "--locale=C", "--no-sync"]
    _run([str(initdb), "-D", str(server.folder), *options], folder)
    password.unlink()


def _run(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **_as_user(folder))
    assert done.returncode == 0, done.stdout + done.stderr


def _as_user(folder: Path) -> dict[str, Any]:
    """Options of a process: the server refuses to run as root."""
    options: dict[str, Any] = {"cwd": folder, "env": {"PATH": os.defpath, "LC_ALL": "C"}}
    if os.geteuid() == 0:
        user = pwd.getpwnam(_USER)
        options |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    return options
