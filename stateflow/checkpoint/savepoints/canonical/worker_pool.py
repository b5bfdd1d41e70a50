"""The workers that write a canonical savepoint: in this process, or in processes of low priority on this host.

`RunningWorker` is the parent's handle of a worker process.
"""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Lock
from types import TracebackType
from typing import BinaryIO, Self, cast

import msgspec

from stateflow.checkpoint.savepoints.canonical.worker import LENGTH, Work, WorkerResult, WorkerTask, WriteShare
from stateflow.checkpoint.savepoints.canonical.writer import (
    WORTH_A_WORKER,
    Destination,
    LocalCopies,
    Shard,
    Storages,
    divide_evenly,
    shares_of,
)
from stateflow.errors import CorruptFile, InternalError, StateflowError
from stateflow.private_files import ScratchFolder
from stateflow.state.handles import StateFile
from stateflow.storage import Storage
from stateflow.types.decoders import msgpack_decoder


@dataclass(frozen=True)
class Volume:
    """The storages that work reads and writes, and how many bytes it reads."""

    source: Storage
    target: Storage
    bytes: int

    @property
    def is_in_memory(self) -> bool:
        """Whether another process does not see a storage."""
        return any(storage.uri.startswith("memory://") for storage in (self.source, self.target))


class SavepointWorkers(ABC):
    """Does the work of savepoints concurrently.

    Attributes:
        worth_a_worker: size of state up to which this process does it, in bytes; others share a worker up to it.
    """

    worth_a_worker = WORTH_A_WORKER

    def write(self, shards: Sequence[Shard], source: Storage, target: Storage, to: Destination) -> list[StateFile]:
        """Writes shards in the canonical format, and returns their files; raises as `write_share` does.

        Args:
            shards: all shards of a savepoint.
            source: the storage with the checkpoint's files.
            target: the storage of the savepoint.
            to: the folder there, and the number of files of a worker.
        """
        works = [WriteShare(share=share, to=to) for share in shares_of(shards, self.worth_a_worker)]
        return self.do(works, Volume(source, target, sum(shard.bytes for shard in shards)))

    def do(self, works: Sequence[Work], volume: Volume) -> list[StateFile]:
        """Does all work, and returns the files in its order.

        Raises:
            StateflowError: an error of the work, or the end of a process; see `RunningWorker.run`.
        """
        if volume.bytes <= self.worth_a_worker or volume.is_in_memory:
            with LocalCopies() as copies:
                storages = Storages(volume.source, copies, volume.target)
                return [file for work in works for file in work.run(storages)]
        tasks = [WorkerTask(source=volume.source.uri, target=volume.target.uri, work=work) for work in works]
        return [file for files in self.run(tasks) for file in files]

    @abstractmethod
    def run(self, tasks: Sequence[WorkerTask]) -> list[list[StateFile]]:
        """Does tasks in other processes, and returns the files of each.

        All processes have ended when this returns or raises.

        Raises:
            StateflowError: the error of a task; others may not be done.
        """


class LocalWorkers(SavepointWorkers):
    """Workers in child processes, of which each gets the next task as soon as it has done one.

    Attributes:
        count: how many run at a time: the number of processors for this process.
    """

    def __init__(self) -> None:
        self.count = len(os.sched_getaffinity(0))

    def run(self, tasks: Sequence[WorkerTask]) -> list[list[StateFile]]:
        """See `SavepointWorkers.run`."""
        if not tasks:
            return []
        waiting = WaitingTasks(tasks, self.count)
        numbers = range(waiting.workers)
        with ThreadPoolExecutor(len(numbers), "stateflow-savepoint-worker") as pool, ExitStack() as processes:
            # After an error the processes end first, so that no thread waits for a task.
            running = [processes.enter_context(RunningWorker()) for _ in numbers]
            try:
                futures = [pool.submit(waiting.do, number, running[number]) for number in numbers]
                for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                    future.result()
            finally:
                waiting.clear()
        return [waiting.done[number] for number in range(len(tasks))]


class WaitingTasks:
    """Tasks that several workers do.

    Neighbours often read the same files, of which a worker keeps copies. So each worker begins with a contiguous part,
    and takes a task from the end of another part when its own is done.

    Args:
        tasks: at least one.
        workers: the maximum number of workers.

    Attributes:
        workers: the number of workers.
        done: the files of each task, by its number.
    """

    def __init__(self, tasks: Sequence[WorkerTask], workers: int) -> None:
        self._parts = [deque(part) for part in divide_evenly(list(enumerate(tasks)), workers)]
        self._lock = Lock()
        self.workers = len(self._parts)
        self.done: dict[int, list[StateFile]] = {}

    def do(self, number: int, worker: RunningWorker) -> None:
        """Lets a worker do tasks until none waits; raises the error of a task."""
        while (taken := self.take(number)) is not None:
            index, task = taken
            self.done[index] = worker.run(task).get_files()

    def take(self, number: int) -> tuple[int, WorkerTask] | None:
        """Returns the next task of a worker, with the task's number; None if there is none."""
        with self._lock:
            if self._parts[number]:
                return self._parts[number].popleft()
            longest = max(self._parts, key=len)
            return longest.pop() if longest else None

    def clear(self) -> None:
        """Removes all tasks that wait."""
        with self._lock:
            for part in self._parts:
                part.clear()


WORKER_PROGRAM = (sys.executable, "-m", "stateflow.checkpoint.savepoints.canonical.worker")
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
            given.write(encode_task(task))
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


def encode_task(task: WorkerTask) -> bytes:
    """Returns a task as a line that the program of workers reads."""
    return base64.b64encode(msgspec.msgpack.encode(task)) + b"\n"
