"""The workers that write a canonical savepoint: in this process, or in processes of low priority on this host."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Lock

from stateflow.checkpoint.savepoints.canonical.running_worker import RunningWorker
from stateflow.checkpoint.savepoints.canonical.shares import WORTH_A_WORKER, Shard, divided, shares_of
from stateflow.checkpoint.savepoints.canonical.worker_tasks import Work, WorkerTask, WriteShare
from stateflow.checkpoint.savepoints.canonical.writer import Destination, LocalCopies, Storages
from stateflow.state.handles import StateFile
from stateflow.storage import Storage


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
        self._parts = [deque(part) for part in divided(list(enumerate(tasks)), workers)]
        self._lock = Lock()
        self.workers = len(self._parts)
        self.done: dict[int, list[StateFile]] = {}

    def do(self, number: int, worker: RunningWorker) -> None:
        """Lets a worker do tasks until none waits; raises the error of a task."""
        while (taken := self.take(number)) is not None:
            index, task = taken
            self.done[index] = worker.run(task).stored()

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
