"""A job with queryable states, and what queries must return at each of its checkpoints: plain dictionaries."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from stateflow import (
    Context,
    KeyedProcessFunction,
    MapStateDescriptor,
    ReducingStateDescriptor,
    RuntimeContext,
    ValueStateDescriptor,
)
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.environment import StreamExecutionEnvironment
from stateflow.private_files import write_private
from stateflow.serving.app import AppSettings
from stateflow.serving.server import ServerSettings, StateServer
from tests.support.local_jobs import LocalJobs

SHOPS = ("north", "south", "eas\0t", "west")
ITEMS = ("tea", "teapot", "cup", "tray", "")


class Sale(msgspec.Struct, frozen=True):
    shop: str
    day: int
    item: str
    amount: int


class Total(msgspec.Struct):
    count: int
    amount: int


class Totals(KeyedProcessFunction[Sale, Sale]):
    """Keeps a total, the items and the largest amount of each key; an item that is sold back is removed."""

    def open(self, ctx: RuntimeContext) -> None:
        self.total = ctx.get_state(ValueStateDescriptor("total", Total, queryable="totals"))
        self.items = ctx.get_map_state(MapStateDescriptor("items", str, int, queryable="sold-items"))
        largest = ReducingStateDescriptor("largest", max, int, queryable="largest")
        self.largest = ctx.get_reducing_state(largest)
        self.secret = ctx.get_state(ValueStateDescriptor("secret", int))

    def process_element(self, row: Sale, ctx: Context) -> None:
        before = self.total.value() or Total(0, 0)
        self.total.update(Total(before.count + 1, before.amount + row.amount))
        self.largest.add(row.amount)
        self.secret.update(row.amount)
        if row.amount > 0:
            self.items[row.item] = row.amount
        else:
            del self.items[row.item]


@dataclass
class Expected:
    totals: dict[tuple[str, int], Total] = field(default_factory=dict)
    items: dict[tuple[str, int], dict[str, int]] = field(default_factory=dict)
    largest: dict[tuple[str, int], int] = field(default_factory=dict)


def sales(number: int, seed: int = 7) -> list[Sale]:
    rng = random.Random(seed)
    return [
        Sale(rng.choice(SHOPS), rng.randrange(-2, 3), rng.choice(ITEMS), rng.randrange(-2, 9)) for _ in range(number)
    ]


def expected(rows: list[Sale]) -> Expected:
    found = Expected()
    for row in rows:
        key = (row.shop, row.day)
        before = found.totals.get(key, Total(0, 0))
        found.totals[key] = Total(before.count + 1, before.amount + row.amount)
        found.largest[key] = max(found.largest.get(key, row.amount), row.amount)
        if row.amount > 0:
            found.items.setdefault(key, {})[row.item] = row.amount
        else:
            found.items.get(key, {}).pop(row.item, None)
    return found


class ShopsJob(LocalJobs):
    """The job, run for some more rows at a time. `expected`: what queries return, by checkpoint."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder, **{"parallelism": 2, "max_parallelism": 16, "state__backend": "memory", **settings})
        self.sold: list[Sale] = []
        self.expected: dict[int, Expected] = {}

    @property
    def root(self) -> str:
        return str(self.folder / "root")

    def sell(self, number: int = 4, **settings: Any) -> int:
        rows = sales(len(self.sold) + number)

        def build(env: StreamExecutionEnvironment) -> None:
            sold = env.from_collection(rows, Sale, uid="sales").key_by("shop", "day")
            sold.process(Totals(), output=Sale, uid="totals").sink_to(self.sink("out"), uid="out")

        self.run(build, source__max_rows_per_batch=max(number, 1), **settings)
        self.sold = rows
        found = JobRoot.open(self.storage, self.clock).head().checkpoint_id
        self.expected[found] = expected(rows)
        return found


# -- state servers: in threads of the test's process, and in processes of their own -----------------------------------

TOKEN = "s3cret-token"
POLL = timedelta(milliseconds=20)


@contextmanager
def serving(job_root: str, token: str = TOKEN, **settings: Any) -> Iterator[StateServer]:
    app = AppSettings(token=token, **settings.pop("app", {}))
    with StateServer(job_root, ServerSettings(app=app, poll=POLL, **settings)) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            yield server
        finally:
            server.stop()
            thread.join()


def serve_process(folder: Path, job_root: str, *options: str, failpoint: str = "") -> subprocess.Popen[str]:
    """Starts ``stateflow serve`` at a free port, with a lease of a second.

    Args:
        folder: for the file with the token.
        job_root: the job root.
        options: further options.
        failpoint: where the process dies.
    """
    token = folder / "token"
    write_private(token, f"{TOKEN}\n".encode())
    command = [sys.executable, "-m", "stateflow", "serve", "--job-root", job_root, "--port", "0", "--lease", "1"]
    return subprocess.Popen(
        [*command, "--token-file", str(token), *options],
        env={**os.environ, "STATEFLOW_FAILPOINT": failpoint},
        stdout=subprocess.PIPE,
        text=True,
    )
