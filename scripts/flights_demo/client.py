"""The few calls of Airflow's REST API that the demo makes."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote


class AirflowError(Exception):
    """Airflow did not do what it was asked for."""


_SECONDS = 120.0
"""How long one call may take; a busy machine needs more than half a minute for some."""
# A proxy in the environment must not see, or answer, what goes to this machine.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class TaskTry:
    """The newest try of a task."""

    state: str | None
    number: int


class AirflowClient:
    """The REST API of one Airflow, as one user.

    Args:
        url: where the API server is.
        user: who asks.
        password: of that user.
    """

    def __init__(self, url: str, user: str, password: str) -> None:
        self._url = url
        answer = _call("POST", f"{url}/auth/token", {"username": user, "password": password})
        self._token = str(answer["access_token"])

    @staticmethod
    def is_healthy(url: str, components: Iterable[str]) -> bool:
        """Whether each of these components reports that it is well."""
        try:
            health = _call("GET", f"{url}/api/v2/monitor/health")
        except AirflowError:
            return False
        reported = (name.replace("-", "_") for name in components if name != "api-server")
        return all(health.get(name, {}).get("status") == "healthy" for name in reported)

    def has_dag(self, dag_id: str) -> bool:
        """Whether the DAG processor has seen that DAG."""
        try:
            self.call("GET", f"dags/{dag_id}")
        except AirflowError:
            return False
        return True

    def unpause(self, dag_id: str) -> None:
        """Lets runs of a DAG begin."""
        self.call("PATCH", f"dags/{dag_id}", {"is_paused": False})

    def trigger(self, dag_id: str, run_id: str, conf: dict[str, Any] | None = None) -> None:
        """Starts a DAG run."""
        body = {"dag_run_id": run_id, "logical_date": None, "conf": conf or {}}
        self.call("POST", f"dags/{dag_id}/dagRuns", body)

    def answer(self, dag_id: str, run_id: str, task_id: str, option: str, given: dict[str, Any]) -> None:
        """Answers a task that waits for a person."""
        path = f"dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances/{task_id}/-1/hitlDetails"
        self.call("PATCH", path, {"chosen_options": [option], "params_input": given})

    def run_state(self, dag_id: str, run_id: str) -> str:
        """`queued`, `running`, `success` or `failed`."""
        return str(self.call("GET", f"dags/{dag_id}/dagRuns/{quote(run_id)}")["state"])

    def task(self, dag_id: str, run_id: str, task_id: str) -> TaskTry:
        """How far the task is."""
        answer = self.call("GET", f"dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances/{task_id}")
        return TaskTry(answer["state"], int(answer["try_number"]))

    def returned(self, dag_id: str, run_id: str, task_id: str) -> Any:
        """What the task returned."""
        path = f"dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances/{task_id}/xcomEntries/return_value"
        return self.call("GET", f"{path}?deserialize=true")["value"]

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """One call; `path` is below ``/api/v2/``. Raises AirflowError with what the server says."""
        return _call(method, f"{self._url}/api/v2/{path}", body, self._token)


def _call(method: str, url: str, body: dict[str, Any] | None = None, token: str = "") -> dict[str, Any]:
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(url, data=data, headers=headers, method=method)
    try:
        with _opener.open(request, timeout=_SECONDS) as answer:
            return dict(json.loads(answer.read() or b"{}"))
    except urllib.error.HTTPError as error:
        raise AirflowError(
            f"{method} {url}: {error.code} {error.read().decode(errors='replace')[:500]}"
        ) from error
    except OSError as error:
        raise AirflowError(f"{method} {url}: {error}") from error
