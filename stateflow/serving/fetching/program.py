"""Main program of a process that fetches: reads states from standard input, and puts their files into a cache.

Its arguments are the id of the parent process, the URI of the job root and the folder of the cache. For each line, a
list of states, it answers with a line.
"""

from __future__ import annotations

import base64
import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from stateflow.clock import SystemClock
from stateflow.config.state_settings import RocksDBSettings
from stateflow.errors import StateflowError
from stateflow.observability.logging import log_event
from stateflow.process_limits import end_with_parent, isolate
from stateflow.serving.fetching.fetch_process import DONE, FAILED, READY, SCRATCH
from stateflow.state.backends.factory import StoreLocation, prepare_to_read
from stateflow.state.files.host_cache import HostCache
from stateflow.state.handles import SubtaskState
from stateflow.storage import open_storage
from stateflow.types.decoders import msgpack_decoder

log = logging.getLogger(__name__)

_MEMORY_BYTES = 1 << 30


def main(parent: int, job_root: str, folder: Path) -> None:
    """Puts files into the cache until standard input ends, or the parent process does."""
    end_with_parent(parent)
    # A terminal sends it to all processes of the server, which ends this one itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What libraries print must not get into the answers.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    threading.Thread(target=_exit_with_input, daemon=True).start()
    # A forged file may crash the process that checks it: that is this one, and the server starts another one.
    isolate(_MEMORY_BYTES)
    cache = HostCache.temporary(folder, open_storage(job_root), SystemClock())
    numbers = count(1)
    answers.write(READY)
    for line in sys.stdin.buffer:
        states = msgpack_decoder(list[SubtaskState]).decode(base64.b64decode(line))
        scratch = folder.with_name(f"{folder.name}.{SCRATCH}-{os.getpid()}-{next(numbers)}")
        answers.write(DONE if _prepare(StoreLocation(scratch, cache, RocksDBSettings()), states) else FAILED)
    os._exit(0)


def _prepare(location: StoreLocation, states: Sequence[SubtaskState]) -> bool:
    try:
        for state in states:
            prepare_to_read(location, state)
    except (StateflowError, OSError) as e:
        # The server meets the same error, and handles it.
        log_event(log, logging.DEBUG, "files-not-fetched", reason=str(e))
        return False
    return True


def _exit_with_input() -> None:
    """Ends this process when its standard input ends, also while it fetches: the server has ended."""
    ended = select.poll()
    # Without an event, `poll` returns only when standard input ends.
    ended.register(0, 0)
    ended.poll()
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
