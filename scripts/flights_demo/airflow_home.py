"""An Airflow installation in one folder: SQLite, four components that listen on the loopback interface, a password."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from flights_demo.client import AirflowClient, AirflowError
from flights_demo.polling import poll
from stateflow_airflow.launch import Command, Launch, Launcher, read_record

# The servers for log files would listen on all network interfaces; all logs are on the local disk.
_COMPONENTS = {
    "api-server": [],
    "scheduler": ["--skip-serve-logs"],
    "dag-processor": [],
    "triggerer": ["--skip-serve-logs"],
}
USER = "admin"


@dataclass(frozen=True)
class Folders:
    """Folders of an Airflow installation."""

    home: Path
    dags: Path
    plugins: Path
    runs: Path
    """Run folder of stateflow's operators."""


@dataclass
class AirflowHome:
    """Starts and stops Airflow; a context manager that ends all its processes, and the jobs they have launched.

    Args:
        folders: where it is installed; `home` keeps the password and database between starts.
        environment: further environment variables, for the DAGs.
        components: components to start; without the scheduler, no DAG run starts.
        users: roles by the names of users, who all have the same password.
    """

    folders: Folders
    environment: Mapping[str, str] = field(default_factory=dict)
    port: int = field(default_factory=lambda: free_port())
    components: Sequence[str] = tuple(_COMPONENTS)
    users: Mapping[str, str] = field(default_factory=lambda: {USER: "admin"})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """URL of the API and the user interface."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def password(self) -> str:
        """Password of the users."""
        return str(self._secrets()["password"])

    def client(self) -> AirflowClient:
        """Returns an authenticated client of the REST API."""
        return AirflowClient(self.url, USER, self.password)

    def migrate(self) -> None:
        """Creates the database."""
        self.folders.home.mkdir(parents=True, exist_ok=True)
        self._write_passwords()
        log = self.folders.home / "db-migrate.log"
        with log.open("wb") as file:
            environment = {**os.environ, **self._settings()}
            command = self._airflow("db", "migrate")
            done = subprocess.run(command, env=environment, cwd=self.folders.home, stdout=file, stderr=file)
        if done.returncode:
            raise AirflowError(f"airflow db migrate failed; see {log}")

    def start(self) -> None:
        """Starts the components; `wait_until_healthy` waits for them."""
        for name in self.components:
            self.start_component(name)

    def start_component(self, name: str, instance: str = "") -> None:
        """Starts a component.

        Args:
            name: name of the component.
            instance: name of a further process of it; by default its only one, which must not be running.
        """
        launcher = self.launcher(instance or name)
        argv = self._airflow(name, *_COMPONENTS[name])
        if name == "api-server":
            argv += ["--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        with launcher.hold_lock():
            launcher.start(launcher.next_folder(), Command(argv, self._settings()))

    def wait_until_healthy(self, seconds: float, waiting: Callable[[], None] = lambda: None) -> None:
        """Waits until all components report that they are healthy.

        Raises:
            AirflowError: a component has ended, or the time is over.
        """

        def healthy() -> bool:
            waiting()
            self._check_alive()
            return AirflowClient.is_healthy(self.url, self.components)

        if not poll(healthy, seconds):
            raise AirflowError(f"Airflow was not up after {seconds:.0f} s; its logs are below {self.folders.home}")

    def is_running(self) -> bool:
        """Returns whether all components are running."""
        return all(self.launcher(name).active() for name in self.components)

    def stop(self) -> None:
        """Ends the components, then every job that their tasks have launched."""
        _end_all(self.folders.home / "components")
        _end_all(self.folders.runs)

    def _check_alive(self) -> None:
        for name in self.components:
            if self.launcher(name).active() is None:
                raise AirflowError(f"Airflow's {name} has ended; its log is below {self.launcher(name).folder}")

    def launcher(self, component: str) -> Launcher:
        """Returns the launcher that has the component's process."""
        return Launcher(self.folders.home / "components" / component)

    def _airflow(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "airflow", *arguments]

    def _secrets(self) -> dict[str, str]:
        path = self.folders.home / "secrets.json"
        if not path.exists():
            path.touch(mode=0o600)
            fresh = {name: secrets.token_urlsafe(32) for name in ("jwt", "api")}
            fresh["fernet"] = urlsafe_b64encode(secrets.token_bytes(32)).decode()
            fresh["password"] = secrets.token_urlsafe(9)
            path.write_text(json.dumps(fresh))
        return dict(json.loads(path.read_text()))

    def _write_passwords(self) -> None:
        path = self.folders.home / "passwords.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps(dict.fromkeys(self.users, self.password)))

    def _settings(self) -> dict[str, str]:
        own = self._secrets()
        home = self.folders.home
        return {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": "2",
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.folders.dags),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(self.folders.plugins),
            "AIRFLOW__CORE__FERNET_KEY": own["fernet"],
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{u}:{role}" for u, role in self.users.items()),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__SECRET_KEY": own["api"],
            "AIRFLOW__API_AUTH__JWT_SECRET": own["jwt"],
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
            "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            "AIRFLOW__STATEFLOW__RUN_FOLDER": str(self.folders.runs),
            "NO_PROXY": "127.0.0.1,localhost",
            **self.environment,
        }


def wipe(folder: Path) -> None:
    """Ends the processes of an earlier demo, then deletes its folder."""
    _end_all(folder)
    shutil.rmtree(folder, ignore_errors=True)


def launches_below(folder: Path) -> list[Launch]:
    """Returns all launches recorded below a folder, oldest first."""
    records = (read_record(path.parent) for path in sorted(folder.rglob("launch.json")))
    return [launch for launch in records if launch]


def _end_all(folder: Path) -> None:
    for launch in launches_below(folder):
        Launcher(Path(launch.folder).parent).stop(launch)


def free_port() -> int:
    """Returns a port without a listener."""
    with socket.socket() as candidate:
        candidate.bind(("127.0.0.1", 0))
        return int(candidate.getsockname()[1])
