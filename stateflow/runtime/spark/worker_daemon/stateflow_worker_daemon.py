"""PySpark's daemon of worker processes, without the traceback of a worker whose Spark has closed the connection.

A task that fails or is interrupted closes it, and PySpark prints a BrokenPipeError with its stack to the driver's log,
which says nothing that the run does not report. The daemon must not start a thread before it forks, so it imports no
other module of stateflow: this file is in a folder of its own, which is on the path of Python workers.
"""

from __future__ import annotations

import socket

from pyspark import daemon

_FAILED = 1
_work = daemon.worker


def _work_quietly(sock: socket.socket, authenticated: bool) -> int:
    try:
        return _work(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return _FAILED  # ends the process, as the exception would have done


daemon.worker = _work_quietly

if __name__ == "__main__":
    daemon.manager()
