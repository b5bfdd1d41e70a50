"""Main program of a worker process: reads `WorkerTask`s from standard input, and answers each with a `WorkerResult`.

Its argument is the id of the parent process. A task is a line; an answer follows its length.
"""

from __future__ import annotations

import base64
import os
import select
import sys
import threading

import msgspec

from stateflow.checkpoint.savepoints.canonical.running_worker import LENGTH
from stateflow.checkpoint.savepoints.canonical.worker_tasks import WorkerTask
from stateflow.checkpoint.savepoints.canonical.writer import LocalCopies
from stateflow.process_limits import end_with_parent, isolate, time_limits
from stateflow.types.decoders import msgpack_decoder

_LOW_PRIORITY = 10
_MEMORY_BYTES = 2 << 30
_CPU_SECONDS, _CPU_SECONDS_PER_MIB = 60, 10
"""A thousand times what writing takes: only a forged file that makes RocksDB loop exceeds it."""
_SECONDS, _SECONDS_PER_MIB = 3600, 60
"""RocksDB can block without end when an allocation fails."""


def main(parent: int) -> None:
    """Does tasks until standard input ends, or the parent process does."""
    end_with_parent(parent)
    os.nice(_LOW_PRIORITY)
    # What libraries print must not get into the results.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    threading.Thread(target=_exit_with_input, daemon=True).start()
    isolate(_MEMORY_BYTES)
    copies = LocalCopies()
    for line in sys.stdin.buffer:
        task = msgpack_decoder(WorkerTask).decode(base64.b64decode(line))
        mebibytes = task.work.size() >> 20
        cpu_seconds = _CPU_SECONDS + mebibytes * _CPU_SECONDS_PER_MIB
        with time_limits(cpu_seconds, _SECONDS + mebibytes * _SECONDS_PER_MIB):
            result = msgspec.msgpack.encode(task.run(copies))
        answers.write(LENGTH.pack(len(result)) + result)
        answers.flush()
    os._exit(0)


def _exit_with_input() -> None:
    """Ends this process when its standard input ends, also during a task: a parent that closes it needs no result."""
    ended = select.poll()
    # Without an event, `poll` returns only when standard input ends, also if it still contains a task.
    ended.register(0, 0)
    ended.poll()
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
