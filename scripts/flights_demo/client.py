"""Client for the calls of Airflow's REST API that the demo needs."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from flights_demo.polling import Stopwatch


class AirflowError(Exception):
    """A call failed, or Airflow did not reach the expected state."""


class DatabaseLocked(AirflowError):
    """Airflow changed nothing, because another of its processes was writing to its SQLite database."""


_TIMEOUT_SECONDS = 120.0
"""Timeout of a call; some take more than half a minute on a busy machine."""
_LOCKED = ("Database is locked", "Database error")
"""What Airflow answers with status 500 when SQLite gives up waiting, which happens on a busy machine."""
_LOCKED_SECONDS, _PAUSE_SECONDS = 60.0, 0.3
# A proxy of the environment must not handle requests to this machine.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class TaskTry:
    """The newest try of a task."""

    state: str | None
    number: int


class AirflowClient:
    """Client of an Airflow REST API. It repeats calls that fail because the database is locked.

    Args:
        url: of the API server.
        user: name to log in with.
        password: of that user.
    """

    def __init__(self, url: str, user: str, password: str) -> None:
        self._url = url
        answer = _call("POST", f"{url}/auth/token", {"username": user, "password": password})
        self._token = str(answer["access_token"])

    @staticmethod
    def is_healthy(url: str, components: Iterable[str]) -> bool:
        """Returns whether each of these components reports that it is healthy."""
        try:
            health = _call("GET", f"{url}/api/v2/monitor/health")
        except AirflowError:
            return False
        reported = (name.replace("-", "_") for name in components if name != "api-server")
        return all(health.get(name, {}).get("status") == "healthy" for name in reported)

    def has_dag(self, dag_id: str) -> bool:
        """Returns whether the DAG processor has parsed the DAG."""
        try:
            self.call("GET", f"dags/{dag_id}")
        except AirflowError:
            return False
        return True

    def unpause(self, dag_id: str) -> None:
        """Unpauses a DAG."""
        self.call("PATCH", f"dags/{dag_id}", {"is_paused": False})

    def trigger(self, dag_id: str, run_id: str, conf: dict[str, Any] | None = None) -> None:
        """Starts a DAG run."""
        body = {"dag_run_id": run_id, "logical_date": None, "conf": conf or {}}
        self.call("POST", f"dags/{dag_id}/dagRuns", body)

    def answer(self, dag_id: str, run_id: str, task_id: str, option: str, given: dict[str, Any]) -> None:
        """Responds to a task that waits for a user."""
        path = f"dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances/{task_id}/-1/hitlDetails"
        self.call("PATCH", path, {"chosen_options": [option], "params_input": given})

    def run_state(self, dag_id: str, run_id: str) -> str:
        """Returns the state of a DAG run: `queued`, `running`, `success` or `failed`."""
        return str(self.call("GET", f"dags/{dag_id}/dagRuns/{quote(run_id)}")["state"])

    def task(self, dag_id: str, run_id: str, task_id: str) -> TaskTry:
        """Returns the newest try of a task."""
        answer = self.call("GET", f"dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances/{task_id}")
        return TaskTry(answer["state"], int(answer["try_number"]))

    def returned(self, dag_id: str, run_id: str, task_id: str) -> Any:
        """Returns the XCom value that a task returned."""
        path = f"dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances/{task_id}/xcomEntries/return_value"
        return self.call("GET", f"{path}?deserialize=true")["value"]

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Calls the API.

        Args:
            path: below ``/api/v2/``.

        Raises:
            AirflowError: the call failed; the message has the response of the server.
        """
        watch = Stopwatch()
        while True:
            try:
                return _call(method, f"{self._url}/api/v2/{path}", body, self._token)
            except DatabaseLocked:
                if watch.seconds > _LOCKED_SECONDS:
                    raise
                time.sleep(_PAUSE_SECONDS)


def _call(method: str, url: str, body: dict[str, Any] | None = None, token: str = "") -> dict[str, Any]:
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(url, data=data, headers=headers, method=method)
    try:
        with _opener.open(request, timeout=_TIMEOUT_SECONDS) as answer:
            return dict(json.loads(answer.read() or b"{}"))
    except urllib.error.HTTPError as error:
        text = error.read().decode(errors="replace")[:500]
        is_locked = error.code == 500 and any(sign in text for sign in _LOCKED)
        raise (DatabaseLocked if is_locked else AirflowError)(f"{method} {url}: {error.code} {text}") from error
    except OSError as error:
        raise AirflowError(f"{method} {url}: {error}") from error
