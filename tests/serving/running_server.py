"""State servers in threads of the test's process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from stateflow.serving.app import AppSettings
from stateflow.serving.server import ServerSettings, StateServer

TOKEN = "s3cret-token"
POLL = timedelta(milliseconds=20)


@contextmanager
def serving(job_root: str, token: str = TOKEN, **settings: Any) -> Iterator[StateServer]:
    """A running server, which has ended after the block, without its lease."""
    app = AppSettings(token=token, **settings.pop("app", {}))
    with StateServer(job_root, ServerSettings(app=app, poll=POLL, **settings)) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            yield server
        finally:
            server.stop()
            thread.join()
