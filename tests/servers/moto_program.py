"""What `tests.servers.running.hasty_s3_server` starts: moto, on a machine that stops threads at the worst moment.

moto looks whether a name is taken and then writes: two requests can both find it free. Its window is small, and Python
switches threads rarely; here a thread always gives way behind the look.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from moto.s3.models import S3Backend
from moto.server import main

_SECONDS = 0.02


def _give_way_behind_the_look() -> None:
    real = S3Backend.get_object

    def looked(self: Any, *arguments: Any, **named: Any) -> Any:
        found = real(self, *arguments, **named)
        time.sleep(_SECONDS)
        return found

    S3Backend.get_object = looked


if __name__ == "__main__":
    _give_way_behind_the_look()
    main(["--host", "127.0.0.1", "--port", sys.argv[1]])
