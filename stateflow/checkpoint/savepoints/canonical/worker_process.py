"""Main program of a worker process: reads a `WorkerTask` from standard input, and writes a `WorkerResult`."""

from __future__ import annotations

import base64
import os
import sys
import threading

import msgspec

from stateflow.checkpoint.savepoints.canonical.worker_tasks import WorkerTask
from stateflow.types.decoders import msgpack_decoder

_LOW_PRIORITY = 10


def main() -> None:
    """Runs the task, and ends when the parent process does."""
    os.nice(_LOW_PRIORITY)
    # What libraries print must not get into the result.
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    task = msgpack_decoder(WorkerTask).decode(base64.b64decode(sys.stdin.buffer.readline()))
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    answer.write(msgspec.msgpack.encode(task.run()))
    answer.flush()
    # Not `answer.close()`: the parent would then close the pipe that the thread waits for, before this process ends.
    os._exit(0)


def _exit_with_parent() -> None:
    # Not with `sys.stdin`, whose lock this thread would hold when the process ends.
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()
