"""A worker process of savepoints, as the process that gives it tasks sees it."""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import BinaryIO, Self, cast

import msgspec

from stateflow.checkpoint.savepoints.canonical.worker_tasks import WorkerResult, WorkerTask
from stateflow.errors import CorruptFile, InternalError, StateflowError
from stateflow.scratch_folder import ScratchFolder
from stateflow.types.decoders import msgpack_decoder

WORKER_PROGRAM = (sys.executable, "-m", "stateflow.checkpoint.savepoints.canonical.worker_process")
LENGTH = struct.Struct(">I")
"""What precedes an answer of the program: the number of its bytes."""
_UNSAFE = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGXCPU})
"""How a process ends that reads a forged file: it crashes, exceeds its memory, or does not get to an end."""
_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(4 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}
"""Otherwise glibc returns each block of 256 KiB to the system, and the page faults of the next one are a quarter of the
CPU time of a canonical savepoint."""


class RunningWorker:
    """A child process of low priority that does one task after the other, so that it starts only once.

    Batches and other work of this host go first. The process ends with the thread that starts it, however this process
    ends, and at the end of the `with` statement, whatever it does then. Its temporary files are removed with it.

    Args:
        program: the command; a test has another one.
    """

    def __init__(self, program: Sequence[str] = WORKER_PROGRAM) -> None:
        self._scratch = ScratchFolder()
        path = os.pathsep.join(path for path in sys.path if path)
        environment = {**os.environ, **_ALLOCATOR, "PYTHONPATH": path, "TMPDIR": str(self._scratch.path)}
        self._process = subprocess.Popen(
            (*program, str(os.getpid())), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        with contextlib.suppress(BrokenPipeError):
            # Waits for the process, too.
            self._process.__exit__(kind, error, trace)
        self._scratch.remove()

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def run(self, task: WorkerTask) -> WorkerResult:
        """Does a task, and returns its result, which may be an error; the process can then do another task.

        Raises:
            CorruptFile: the process crashed while it read stored state, so a retry does not help.
            InternalError: the process ended without a result.
        """
        given, answers = cast(BinaryIO, self._process.stdin), cast(BinaryIO, self._process.stdout)
        # An ended process has no answer, and its exit code is the reason.
        with contextlib.suppress(BrokenPipeError):
            given.write(encoded(task))
            given.flush()
        head = answers.read(LENGTH.size)
        if len(head) == LENGTH.size:
            (length,) = LENGTH.unpack(head)
            answer = answers.read(length)
            if len(answer) == length:
                return msgpack_decoder(WorkerResult).decode(answer)
        raise error_of_end(task, self._process.wait())


def error_of_end(task: WorkerTask, exit_code: int) -> StateflowError:
    """Returns the error for a process that ended during a task; a signal is a negative exit code."""
    files = task.work.stored_files()
    if -exit_code in _UNSAFE and files:
        return CorruptFile(
            "stored state is not safe to read",
            hint="restore an older checkpoint or savepoint, and find out who changed this one: its hashes match",
            reason=f"the process that read it ended with {signal.Signals(-exit_code).name}",
            files=files[:5],
        )
    return InternalError(
        "a process that writes a savepoint ended without a result",
        hint="create the savepoint again; after a signal, check the memory of the host",
        exit_code=exit_code,
    )


def encoded(task: WorkerTask) -> bytes:
    """Returns a task as a line that the program of workers reads."""
    return base64.b64encode(msgspec.msgpack.encode(task)) + b"\n"
