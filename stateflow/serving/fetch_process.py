"""A child process of a state server that fetches and checks the files of new checkpoints.

`FetchProcess` is the server's handle of it. As a program, this module reads lists of states from standard input and
puts their files into a cache; it answers each line with a line. Its arguments are the id of the parent process, the URI
of the job root and the folder of the cache.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from stateflow.clock import SystemClock
from stateflow.config.settings import RocksDBSettings
from stateflow.errors import StateflowError
from stateflow.observability import log_event
from stateflow.process_limits import end_with_parent, isolate
from stateflow.state.backends.factory import StoreLocation, prepare_to_read
from stateflow.state.handles import SubtaskState
from stateflow.state.host_cache import HostCache, remove_tree
from stateflow.storage import open_storage
from stateflow.types.decoders import msgpack_decoder

log = logging.getLogger(__name__)


FETCH_PROGRAM = (sys.executable, "-m", "stateflow.serving.fetch_process")
READY, DONE, FAILED = b"ready\n", b"done\n", b"fail\n"
"""Lines that the program writes: READY when it can take states; then for each list of states DONE if the cache has all
of their files, or FAILED."""
SCRATCH = "fetching"
"""Part of the names of the program's working folders, after the name of the cache folder."""
_STARTS = 3


class FetchProcess:
    """A child process that puts the files of states into the cache of a server, fetched and checked.

    After a merge, these are hundreds of megabytes. Checking them takes the interpreter lock thousands of times, for
    which queries in the same process would wait. If the process is not ready, fails or ends, the server fetches and
    checks the files itself, and reports the error that it finds.

    The process ends with the thread that makes this object, and with `close`.

    Args:
        job_root: URI of the job root.
        folder: the folder of the server's cache.
        program: the command; a test has another one.
    """

    def __init__(self, job_root: str, folder: Path, program: Sequence[str] = FETCH_PROGRAM) -> None:
        self._command = (*program, str(os.getpid()), job_root, str(folder))
        self._folder = folder
        self._starts = 0
        self._is_ready = False
        self._process: subprocess.Popen[bytes] | None = None
        self._start()

    @property
    def pid(self) -> int | None:
        """The id of the process; None if it cannot be started, or has ended too often."""
        return self._process.pid if self._process else None

    def prepare(self, states: Sequence[SubtaskState]) -> bool:
        """Fetches and checks the files of states; returns whether the process has done so."""
        process = self._process
        if not states or process is None or not self.wait(0):
            return False
        # An ended process has no answer.
        with contextlib.suppress(BrokenPipeError):
            given = cast(BinaryIO, process.stdin)
            given.write(encode_states(states))
            given.flush()
        answer = _answer(process)
        if answer not in (DONE, FAILED):
            self._restart(process)
        return answer == DONE

    def wait(self, seconds: float) -> bool:
        """Waits for at most `seconds` until the process is ready; returns whether it is."""
        process = self._process
        if process is None or self._is_ready:
            return self._is_ready
        if select.select([cast(BinaryIO, process.stdout)], [], [], seconds)[0]:
            self._is_ready = _answer(process) == READY
            if not self._is_ready:
                self._restart(process)
        return self._is_ready

    def close(self) -> None:
        """Kills the process."""
        process, self._process, self._is_ready = self._process, None, False
        if process is not None:
            process.kill()
            with contextlib.suppress(BrokenPipeError):
                # Waits for the process, too.
                process.__exit__(None, None, None)

    def _restart(self, ended: subprocess.Popen[bytes]) -> None:
        """Replaces a process that has ended, a few times: a file or the memory of the host may have ended it."""
        self.close()
        for left in self._folder.parent.glob(f"{self._folder.name}.{SCRATCH}-*"):
            remove_tree(left)
        log_event(log, logging.WARNING, "fetch-process-ended", exit_code=ended.returncode)
        if self._starts < _STARTS:
            self._start()

    def _start(self) -> None:
        self._starts += 1
        path = os.pathsep.join(path for path in sys.path if path)
        environment = {**os.environ, "PYTHONPATH": path}
        try:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
            )
        except OSError as e:
            log_event(log, logging.WARNING, "fetch-process-not-started", reason=str(e))


def _answer(process: subprocess.Popen[bytes]) -> bytes:
    return cast(BinaryIO, process.stdout).readline(max(len(READY), len(DONE)))


def encode_states(states: Sequence[SubtaskState]) -> bytes:
    """Returns states as a line that the program reads."""
    return base64.b64encode(msgspec.msgpack.encode(states)) + b"\n"


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
