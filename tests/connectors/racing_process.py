"""The other process of a race: ``python -m tests.connectors.racing_process create|publish|append|rewind ARGS``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from stateflow.connectors.delta.sink import DeltaSink
from stateflow.errors import StateflowError
from tests.support.delta_tables import Job, context, pairs, put


def create(tables: str, count: str) -> None:
    """Prepares many tables, and prints their ids."""
    for i in range(int(count)):
        print(DeltaSink(Path(tables) / str(i)).prepare(context()))


def publish(root: str, table: str) -> None:
    """Publishes what is pending in the head of a job."""
    job = Job(Path(root), Path(table))
    for done in job.publish(job.root.head()):
        print(done.checkpoint_id, done.version)


def append(table: str, application: str, count: str) -> None:
    """Commits many checkpoints of one row each."""
    sink, about = DeltaSink(table), context(uid=application)
    for token in range(1, int(count) + 1):
        while True:
            try:
                put(sink, about, token, pairs(token, 1))
                break
            except AssertionError:
                continue


def rewind(tables: str, count: str) -> None:
    """Goes back to version 1 in many tables, with token 9, and prints the results."""
    for i in range(int(count)):
        handle = DeltaSink(Path(tables) / str(i)).open_table(context())
        print("done before" if handle.token == 9 else handle.rewind(1, token=9))


_TASKS: dict[str, Callable[..., None]] = {"create": create, "publish": publish, "append": append, "rewind": rewind}


def main() -> int:
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        _TASKS[sys.argv[1]](*sys.argv[2:])
    except StateflowError as e:
        print(e.code)
        return e.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
