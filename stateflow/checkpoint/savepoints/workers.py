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

import msgspec

from stateflow.checkpoint.barrier.task_report import Failure
from stateflow.checkpoint.savepoints.canonical import Destination, write_share
from stateflow.checkpoint.savepoints.shares import WORTH_A_WORKER, Shard, shares_of
from stateflow.errors import InternalError, StateflowError
from stateflow.state.handles import Document, StateFile
from stateflow.storage import Storage, open_storage
from stateflow.types.decoders import msgpack_decoder

_MEMORY = "memory://"
WORKER_PROGRAM = (sys.executable, "-m", "stateflow.checkpoint.savepoints.worker_process")


class WorkerTask(Document, frozen=True, kw_only=True):
    """What one worker does, in another process."""

    share: list[Shard]
    source: str
    """URI of the storage with the checkpoint's files."""
    target: str
    """URI of the storage of the savepoint."""
    to: Destination

    def run(self) -> WorkerResult:
        """Writes the share, and returns its files or its error."""
        try:
            files = write_share(self.share, open_storage(self.source), open_storage(self.target), self.to)
        except StateflowError as e:
            return WorkerResult(failure=Failure.of(e))
        return WorkerResult(files=files)


class WorkerResult(Document, frozen=True, kw_only=True):
    """The files that a worker has written, or why it failed."""

    files: list[StateFile] = []
    failure: Failure | None = None


class SavepointWorkers(ABC):
    """Writes shares concurrently.

    Attributes:
        worth_a_worker: size of state up to which this process writes it, in bytes; others share a worker up to it.
    """

    worth_a_worker = WORTH_A_WORKER

    def write(self, shards: Sequence[Shard], source: Storage, target: Storage, to: Destination) -> list[StateFile]:
        """Writes shards, and returns their canonical files; raises as `write_share` does.

        Args:
            shards: all shards of a savepoint.
            source: the storage with the checkpoint's files.
            target: the storage of the savepoint.
            to: the folder there, and the number of files of a worker.
        """
        shares = shares_of(shards, self.worth_a_worker)
        is_small = sum(shard.bytes for shard in shards) <= self.worth_a_worker
        # Another process does not see a storage in memory.
        if is_small or _MEMORY in (source.uri[: len(_MEMORY)], target.uri[: len(_MEMORY)]):
            return [file for share in shares for file in write_share(share, source, target, to)]
        tasks = [WorkerTask(share=share, source=source.uri, target=target.uri, to=to) for share in shares]
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
    """Workers in child processes, as many at a time as there are processors for this process."""

    def run(self, tasks: Sequence[WorkerTask]) -> list[WorkerResult]:
        """See `SavepointWorkers.run`."""
        count = min(len(tasks), len(os.sched_getaffinity(0)))
        with ThreadPoolExecutor(count, thread_name_prefix="stateflow-savepoint-worker") as pool:
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
