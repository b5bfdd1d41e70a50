"""The state server's handle of the child process that fetches and checks files."""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from stateflow.observability.logging import log_event
from stateflow.state.files.host_cache import remove_tree
from stateflow.state.handles import SubtaskState

log = logging.getLogger(__name__)

FETCH_PROGRAM = (sys.executable, "-m", "stateflow.serving.fetching.program")
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
            given.write(encoded(states))
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


def encoded(states: Sequence[SubtaskState]) -> bytes:
    """Returns states as a line that the program reads."""
    return base64.b64encode(msgspec.msgpack.encode(states)) + b"\n"
