"""The operator that runs a state server as a task."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from stateflow_airflow.failures import log_failure, server_failure
from stateflow_airflow.operators.base import JobRootOperator, allowed_locations
from stateflow_airflow.operators.template_values import check_job_root, to_duration
from stateflow_airflow.versions import require_supported

if TYPE_CHECKING:
    from airflow.sdk import Context

require_supported()

_GRACE_SECONDS = 30


class StateflowServeOperator(JobRootOperator):
    """Runs a state server, which answers queries of a job's committed state, for some time.

    The task occupies a slot of a worker as long as it runs: a server is not deferrable. Where services can run, prefer
    `stateflow serve` as one. When the task is cleared, marked or timed out, or its worker is killed, the server ends
    with its lease, and other servers of the job take over its key groups. A server that ends for another reason is
    a failure that is retried, unless its settings are refused.

    Args:
        job_root: the job's root, see `StateflowRunOperator`. Templated.
        host: address to listen at; clients must reach it. Templated.
        port: port to listen at; 0 for a free one. Templated.
        token_file: path of a file on the worker with the token of clients; may be empty for a loopback address.
            Templated.
        advertise: URL at which clients reach the server; by default made of host and port. Templated.
        duration: how long the server runs; None until the task is killed.
    """

    template_fields: Sequence[str] = ("job_root", "host", "port", "token_file", "advertise")
    ui_color = "#dfe9f2"

    def __init__(
        self,
        *,
        job_root: str,
        host: str = "127.0.0.1",
        port: int | str = 8470,
        token_file: str = "",
        advertise: str = "",
        duration: timedelta | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(job_root=job_root, **kwargs)
        self.host = host
        self.port = port
        self.token_file = token_file
        self.advertise = advertise
        self.duration = duration
        self._server: subprocess.Popen[bytes] | None = None
        self._is_killed = False

    def execute(self, context: Context) -> None:
        """Starts the server, and ends it after `duration`; `on_kill` ends it as well.

        Raises:
            StateflowTaskFailed: the settings are refused, or the server has ended before its time.
        """
        command = [sys.executable, "-m", "stateflow", "serve", "--job-root", check_job_root(self.job_root)]
        command += ["--host", self.host, "--port", str(self.port)]
        command += ["--token-file", self.token_file] if self.token_file else []
        command += ["--advertise", self.advertise] if self.advertise else []
        # A worker that is killed leaves no server, which would occupy the port of the next try.
        command += ["--end-with", str(os.getpid())]
        self._is_killed, duration = False, to_duration("duration", self.duration)
        self._server = subprocess.Popen(command, env={**os.environ, **allowed_locations(self.locations)})
        try:
            code = self._server.wait(None if duration is None else duration.total_seconds())
        except subprocess.TimeoutExpired:
            return
        finally:
            self._end()
        if not self._is_killed:
            raise log_failure(server_failure(code))

    def on_kill(self) -> None:
        """Ends the server, with its lease."""
        self._is_killed = True
        self._end()

    def _end(self) -> None:
        server = self._server
        if server is None or server.poll() is not None:
            return
        server.terminate()
        try:
            server.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
