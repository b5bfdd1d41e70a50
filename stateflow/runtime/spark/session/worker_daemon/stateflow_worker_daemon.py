"""PySpark's worker daemon, without the traceback of a worker whose connection Spark has closed.

A task that fails or is interrupted closes its connection, and PySpark prints a BrokenPipeError with a stack trace to
the driver's log, although the run reports the failure. The daemon must not start a thread before it forks, so it
imports no other module of stateflow: this file has a folder of its own, which is on the ``PYTHONPATH`` of workers.
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
        return _FAILED  # ends the process, as the exception would


daemon.worker = _work_quietly

if __name__ == "__main__":
    daemon.manager()
