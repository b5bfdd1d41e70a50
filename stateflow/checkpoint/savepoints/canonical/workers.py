"""The workers that write a canonical savepoint: in this process, or in processes of low priority on this host."""

from __future__ import annotations

import base64
import contextlib
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec

from stateflow.checkpoint.savepoints.canonical.shares import WORTH_A_WORKER, Shard, shares_of
from stateflow.checkpoint.savepoints.canonical.worker_tasks import (
    DivideShare,
    SortBuckets,
    WorkerResult,
    WorkerTask,
    WriteShare,
)
from stateflow.checkpoint.savepoints.canonical.writer import Destination
from stateflow.errors import InternalError
from stateflow.state.handles import StateFile
from stateflow.storage import Storage
from stateflow.types.decoders import msgpack_decoder

WORKER_PROGRAM = (sys.executable, "-m", "stateflow.checkpoint.savepoints.canonical.worker_process")


Work = WriteShare | DivideShare | SortBuckets


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
            StateflowError: the first error of the work.
            InternalError: a process ended without a result.
        """
        if volume.bytes <= self.worth_a_worker or volume.is_in_memory:
            return [file for work in works for file in work.run(volume.source, volume.target)]
        tasks = [WorkerTask(source=volume.source.uri, target=volume.target.uri, work=work) for work in works]
        results = self.run(tasks)
        for result in results:
            if result.failure:
                raise result.failure.to_error()
        return [file for result in results for file in result.files]

    @abstractmethod
    def run(self, tasks: Sequence[WorkerTask]) -> list[WorkerResult]:
        """Runs tasks in other processes; returns their results in the same order.

        Raises:
            InternalError: a process ended without a result.
        """


class LocalWorkers(SavepointWorkers):
    """Workers in child processes.

    Attributes:
        count: how many run at a time: the number of processors for this process.
    """

    def __init__(self) -> None:
        self.count = len(os.sched_getaffinity(0))

    def run(self, tasks: Sequence[WorkerTask]) -> list[WorkerResult]:
        """See `SavepointWorkers.run`."""
        with ThreadPoolExecutor(min(len(tasks), self.count), thread_name_prefix="stateflow-savepoint-worker") as pool:
            futures = [pool.submit(run_in_process, task) for task in tasks]
            try:
                return [future.result() for future in futures]
            finally:
                pool.shutdown(cancel_futures=True)


def run_in_process(task: WorkerTask) -> WorkerResult:
    """Runs a task in a child process of low priority, so that batches and other work of this host go first.

    The child ends when this process ends, however that happens: its standard input ends then.

    Raises:
        InternalError: the child ended without a result.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(WORKER_PROGRAM, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as child:
        assert child.stdin is not None and child.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(encoded(task))
            child.stdin.flush()
        # Not `communicate`, which would end the child's standard input.
        answer = child.stdout.read()
    if child.returncode != 0:
        raise InternalError(
            "a process that writes a savepoint ended without a result",
            hint="create the savepoint again; after a signal, check the memory of the host",
            exit_code=child.returncode,
        )
    return msgpack_decoder(WorkerResult).decode(answer)


def encoded(task: WorkerTask) -> bytes:
    """Returns a task as a line that the program of workers reads."""
    return base64.b64encode(msgspec.msgpack.encode(task)) + b"\n"
