"""State servers: in threads of the test's process, and in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from stateflow.private_files import write_private
from stateflow.serving.app import AppSettings
from stateflow.serving.server import ServerSettings, StateServer

TOKEN = "s3cret-token"
POLL = timedelta(milliseconds=20)


@contextmanager
def serving(job_root: str, token: str = TOKEN, **settings: Any) -> Iterator[StateServer]:
    app = AppSettings(token=token, **settings.pop("app", {}))
    with StateServer(job_root, ServerSettings(app=app, poll=POLL, **settings)) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            yield server
        finally:
            server.stop()
            thread.join()


def serve_process(folder: Path, job_root: str, *options: str, failpoint: str = "") -> subprocess.Popen[str]:
    """Starts ``stateflow serve`` at a free port, with a lease of a second.

    Args:
        folder: for the file with the token.
        job_root: the job root.
        options: further options.
        failpoint: where the process dies.
    """
    token = folder / "token"
    write_private(token, f"{TOKEN}\n".encode())
    command = [sys.executable, "-m", "stateflow", "serve", "--job-root", job_root, "--port", "0", "--lease", "1"]
    return subprocess.Popen(
        [*command, "--token-file", str(token), *options],
        env={**os.environ, "STATEFLOW_FAILPOINT": failpoint},
        stdout=subprocess.PIPE,
        text=True,
    )
