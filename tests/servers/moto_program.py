"""The program of `tests.servers.running.hasty_s3_server`: moto, with another thread scheduled at the worst time.

moto checks whether a name is free and then writes: two requests can both find it free. The window is small, and Python
switches threads rarely; here a thread always yields after the check.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from moto.s3.models import S3Backend
from moto.server import main

_get_object = S3Backend.get_object


def _get_object_and_yield(self: Any, *arguments: Any, **named: Any) -> Any:
    found = _get_object(self, *arguments, **named)
    time.sleep(0.02)
    return found


if __name__ == "__main__":
    S3Backend.get_object = _get_object_and_yield
    main(["--host", "127.0.0.1", "--port", sys.argv[1]])
