"""A job in a folder, run as often as it takes, and what must come out of it, computed with plain dictionaries."""

from __future__ import annotations

import json
import random
import shlex
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from stateflow.failpoints import NAMES
from tests.support import folder_tables, root_files, stored_state
from tests.support.processes import Ended, Launch, Running, fork, wait_for

ON_REQUEST = {
    n
    for n in NAMES
    if n.partition(".")[0]
    in (
        "savepoint", "request", "restore", "rewind", "fork", "read", "diff", "write", "begin", "relocate", "postgres",
        "iceberg", "compaction", "transaction", "serve", "files",
    )
}  # fmt: skip
"""Failpoints that a run passes only when a user or a command requests something, or with other sources and sinks."""
ASYNCHRONOUS = {n for n in NAMES if n.startswith("upload.")}
"""Failpoints that a run passes only when checkpoints are asynchronous."""
JOBS = Path(__file__).parent / "jobs"
SLICE = 10
KILLED = -9


def mostly_slow(
    points: Iterable[Any], quick: Iterable[Any], reason: str = "kills a run, and lets another complete it"
) -> list[Any]:
    """Test parameters, or tuples of them, of which only the `quick` ones are part of ``make test``."""
    every, chosen = list(points), set(quick)
    assert chosen <= set(every)
    slow = pytest.mark.slow(reason=reason)
    marked = ((p, () if p in chosen else slow) for p in every)
    return [pytest.param(*(p if isinstance(p, tuple) else (p,)), marks=marks) for p, marks in marked]


Row = dict[str, Any]


@dataclass(frozen=True)
class Expected:
    movements: list[Row]
    totals: list[Row]
    balances: dict[tuple[Any, ...], Any]
    turnovers: dict[tuple[Any, ...], Any]


def second_time(point: str) -> str:
    """A failpoint when a run reaches it for the second time; for the first time, of those that it reaches only once."""
    return f"{point}:{1 if point.partition('.')[0] in ('claim', 'start', 'run', 'history') else 2}"


def events(number: int) -> list[Row]:
    rng = random.Random(7)
    return [
        {
            "number": n, "account": f"account-{rng.randrange(9)}", "shop": f"shop-{rng.randrange(6)}",
            "amount": rng.choice([-2, -1, 1, 2]),
        }
        for n in range(number)
    ]  # fmt: skip


def expected(rows: Sequence[Row]) -> Expected:
    """The oracle: processes the events one after another, ten to a batch."""
    accounts: dict[str, tuple[int, int]] = {}
    spent: Counter[tuple[str, str]] = Counter()
    turnover: Counter[str] = Counter()
    batches: Counter[str] = Counter()
    customers: dict[str, dict[str, int]] = {}
    result = Expected([], [], {}, {})
    for start in range(0, len(rows), SLICE):
        batch = rows[start : start + SLICE]
        for row in batch:
            account, shop, amount = row["account"], row["shop"], row["amount"]
            n, balance = accounts.get(account, (0, 0))
            accounts[account] = n + 1, balance + amount
            spent[account, shop] += amount
            turnover[shop] += amount
            customers.setdefault(shop, {})[account] = balance + amount
            figures = {"count": n + 1, "balance": balance + amount, "spent_here": spent[account, shop]}
            result.movements.append({**row, **figures})
        for shop in sorted({row["shop"] for row in batch}):
            batches[shop] += 1
            figures = {"turnover": turnover[shop], "customers": len(customers[shop])}
            result.totals.append({"shop": shop, "batch": batches[shop], **figures})
    result.balances.update({("account", (a,), None): list(figures) for a, figures in accounts.items()})
    result.balances.update({("shops", (a,), s): total for (a, s), total in spent.items() if total})
    result.turnovers.update({("turnover", (s,), None): total for s, total in turnover.items()})
    result.turnovers.update({("batches", (s,), None): n for s, n in batches.items()})
    for shop, known in customers.items():
        result.turnovers.update({("customers", (shop,), a): balance for a, balance in known.items()})
    return result


@dataclass
class JobFixture:
    """One job root with all that belongs to it, and the processes that were started on it.

    Attributes:
        address: of the job root, when programs do not find it by the path where the tests look at it.
        tables_folder: folder of the tables, where the tests look at them; below the folder of the job unless given.
        variables: of the environment of every process.
        log_format: of runs.
    """

    folder: Path
    settings: Mapping[str, object] = field(default_factory=dict)
    job_name: str = "accounts"
    launcher: Callable[[Launch], Running] = fork
    processes: list[Running] = field(default_factory=list)
    root_folder: Path | None = None
    address: str = ""
    tables_folder: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    log_format: str = "text"
    _numbers: Iterable[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    @property
    def root(self) -> Path:
        return self.root_folder or self.folder / "root"

    @property
    def job_root(self) -> str:
        """As the command line gets it."""
        return self.address or str(self.root)

    @property
    def local(self) -> Path:
        return self.folder / "local"

    @property
    def marker(self) -> Path:
        return self.folder / "reached"

    def table(self, name: str) -> Path:
        return (self.tables_folder or self.folder / "tables") / name

    # -- what is stored -----------------------------------------------------------------------------------------------

    @property
    def head(self) -> root_files.Entry:
        return root_files.head(self.root)

    @property
    def manifest(self) -> root_files.Document:
        return root_files.read_manifest(self.root, self.head.doc["manifest"])

    @property
    def commits(self) -> list[root_files.Entry]:
        return [e for e in root_files.kept_entries(self.root) if e.doc["kind"] == "commit"]

    def commit_at(self, position: int) -> root_files.Entry:
        """The COMMIT up to which the source was read so far."""
        return next(e for e in self.commits if e.position == position)

    @property
    def savepoints(self) -> dict[str, root_files.Document]:
        return root_files.savepoints(self.root)

    @property
    def job_uuid(self) -> str:
        return str(root_files.unsealed((self.root / "FORMAT").read_bytes())[0]["job_uuid"])

    def records(self, kind: str) -> list[root_files.Document]:
        return [r for r in root_files.history(self.root) if r.get("kind") == kind]

    # -- running ------------------------------------------------------------------------------------------------------

    def start(
        self, failpoint: str = "", launcher: Callable[[Launch], Running] | None = None, **settings: object
    ) -> Running:
        """Starts a run.

        Args:
            failpoint: as ``STATEFLOW_FAILPOINT`` has it; it acts once, also when a task or the run is tried again.
            settings: names with two underscores for each dot.
        """
        output = self._next_output()
        options = ["--result-file", str(output.with_suffix(".json")), "--log-format", self.log_format]
        arguments = ["run", self.job_file, "--job-root", self.job_root, *options, *self._assignments(**settings)]
        return self._start(launcher or self.launcher, arguments, self._environment(failpoint), output)

    def run(self, failpoint: str = "", **settings: Any) -> Ended:
        return self.start(failpoint, **settings).wait()

    def finish(self, **settings: Any) -> Ended:
        return self.run(**settings).check()

    def reach(self, failpoint: str, code: int = KILLED, **settings: Any) -> None:
        """A run in which a process is killed at a failpoint: on Spark a worker's death does not end it."""
        running = self.start(failpoint, **settings)
        ended = running.wait(running.family)
        assert ended.code == code, str(ended)
        assert self.marker.exists(), f"{failpoint} was not reached"

    @property
    def job_file(self) -> str:
        return str(JOBS / f"{self.job_name}.py")

    def command(self, *arguments: str, failpoint: str = "", with_job: bool = False) -> Ended:
        return self.begin(*arguments, failpoint=failpoint, with_job=with_job).wait()

    def create_savepoint(self, name: str, *more: str, with_job: bool = False) -> root_files.Document:
        created = self.command("savepoint", "create", "--name", name, "--json", *more, with_job=with_job)
        report: root_files.Document = created.check().document
        return report

    def begin(self, *arguments: str, failpoint: str = "", with_job: bool = False) -> Running:
        """Starts another command on the same job root; `with_job` gives it the settings of a run as well."""
        settings = self._assignments() if with_job else []
        everything = [*arguments, "--job-root", self.job_root, *settings]
        return self._start(fork, everything, self._environment(failpoint))

    def asked_at(self, failpoint: str, *arguments: str, **settings: Any) -> tuple[Ended, Ended]:
        """How a command that asks a run for something ended, and the run: it stops at `failpoint` until it has been
        asked, continues, and must succeed."""
        before = self._requests()
        run = self.start(f"{failpoint}:stop", requests__interval="20ms", **settings).wait_stopped()
        requester = self.begin(*arguments, "--timeout", "60", "--acknowledge-timeout", "60")
        wait_for(lambda: self._requests() > before, lambda: "the request")
        run.resume()
        return requester.wait(), run.wait().check()

    def _requests(self) -> set[str]:
        """The requests that were ever made to runs, without signs and answers."""
        return {path.name for path in (self.root / "requests").glob("*") if "." not in path.name}

    def shell(self, line: str) -> Ended:
        """What a person copies from the terminal: ``stateflow`` with all its arguments."""
        command, *arguments = shlex.split(line)
        assert command == "stateflow"
        return self._start(fork, arguments, self._environment("")).wait()

    def _environment(self, failpoint: str) -> dict[str, str]:
        if failpoint:
            self.marker.unlink(missing_ok=True)
        point = {"STATEFLOW_FAILPOINT": failpoint, "STATEFLOW_FAILPOINT_ONCE": str(self.marker)}
        return {**self.variables, **point}

    def _assignments(self, **settings: object) -> list[str]:
        # Most tests say which barrier is a checkpoint when a run dies, or stops: then each batch waits for its own.
        given = {
            "job__folder": self.folder, "local_dir": self.local, "checkpoints__asynchronous": "no", **self.settings,
            **settings,
        }  # fmt: skip
        return [a for n, v in given.items() for a in ("--set", f"{n.replace('__', '.')}={v}")]

    def collect(self) -> None:
        """One ``stateflow gc``, which must be enough."""
        self.command("gc").check()
        dry = self.command("gc", "--dry-run", "--json").check().document
        assert (dry["deleted_files"], dry["unknown_keys"]) == (0, []), dry

    def end_all(self) -> None:
        for process in self.processes:
            process.kill()

    def _next_output(self) -> Path:
        """A path of a process's own: other boxes may have the same folder."""
        folder = self.folder / "output"
        folder.mkdir(exist_ok=True)
        taken = {path.stem for path in folder.iterdir()}
        output = folder / next(str(number) for number in self._numbers if str(number) not in taken)
        output.with_suffix(".out").touch(exist_ok=False)
        return output

    def _start(
        self,
        launcher: Callable[[Launch], Running],
        arguments: Sequence[str],
        environment: dict[str, str],
        output: Path | None = None,
    ) -> Running:
        launch = Launch(arguments, output or self._next_output(), environment, collect_batch=3)
        running = launcher(launch)
        self.processes.append(running)
        return running


class AccountsJob(JobFixture):
    @property
    def upserts_totals(self) -> bool:
        """Whether the newest total of a shop replaces the one before."""
        return False

    def deliver(self, rows: int, *items: tuple[int, Row]) -> None:
        """Makes the script that many events long.

        Args:
            items: (number of the event that it comes before, crash or pause).
        """
        lines: list[Row] = list(events(rows))
        for position, item in sorted(items, key=lambda i: i[0], reverse=True):
            lines.insert(position, item)
        (self.folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def run_to(self, rows: int, **settings: object) -> Ended:
        self.deliver(rows)
        return self.finish(**settings)

    def deliver_more(self, rows: int) -> None:
        self.deliver(len(self.delivered) + rows)

    def kill_at(self, stop: str, **settings: object) -> None:
        """Runs until a run is killed there. How many checkpoints a run has depends on who is faster when they are
        stored asynchronously: after one that had too few comes one over more events."""
        for _ in range(20):
            ended = self.run(stop, **settings)
            if ended.code != 0:
                assert ended.code == KILLED and self.marker.exists(), ended
                return
            self.deliver_more(10 * SLICE)
        raise AssertionError(f"no run came to {stop}")

    def replace_events(self, since: int) -> None:
        """Makes the events from that one on others: the output of the old ones differs from what must come."""
        changed = [{**e, "amount": 3 * e["amount"]} if e["number"] >= since else e for e in self.delivered]
        (self.folder / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in changed))

    @property
    def delivered(self) -> list[Row]:
        lines = map(json.loads, (self.folder / "events.jsonl").read_text().splitlines())
        return [line for line in lines if "number" in line]

    def requested(self) -> list[tuple[int, int]]:
        path = self.folder / "ledger.jsonl"
        return [(a, b) for a, b in map(json.loads, path.read_text().splitlines())] if path.exists() else []

    def rows(self, table: str) -> list[Row]:
        return folder_tables.rows(self.table(table))

    def lose_output(self, table: str = "movements") -> root_files.Entry:
        """Deletes a file of the newest checkpoint before it is published, as a VACUUM may; returns its entry."""
        newest = self.head
        (self.table(table) / "data" / newest.pending[table][0]).unlink()
        return newest

    def check(self) -> None:
        self.check_results()
        self.check_clean()

    def check_results(self) -> None:
        self.check_tables()
        wanted = expected(self.delivered)
        assert stored_state.read_state(self.root, "balances") == wanted.balances
        assert stored_state.read_state(self.root, "turnovers") == wanted.turnovers
        newest = root_files.head(self.root)
        assert newest.position == len(self.delivered)

    def check_tables(self) -> None:
        wanted = expected(self.delivered)
        newest = {row["shop"]: row for row in wanted.totals}
        assert multiset(self.rows("movements")) == multiset(wanted.movements)
        assert multiset(self.rows("totals")) == multiset(newest.values() if self.upserts_totals else wanted.totals)

    def check_clean(self) -> None:
        """One collection leaves no garbage: not in the job root, the tables or the scratch space."""
        self.collect()
        root_files.check_no_orphans(self.root)
        for table in ("movements", "totals"):
            assert folder_tables.leftovers(self.table(table)) == []
        newest = root_files.head(self.root).doc["generation"]
        older = {name: g for name, g in root_files.scratch_generations(self.local).items() if g < newest}
        assert older == {}


def multiset(rows: Iterable[Row]) -> Counter[str]:
    """Rows that can be compared whatever their order, with how often each is stored."""
    return Counter(json.dumps(row, sort_keys=True, default=str) for row in rows)


Tables = Mapping[str, Counter[Any]]
"""The rows of tables by name, with how often each is stored."""


class OracleJob(JobFixture, ABC):
    """A job with its script of rows, and what its tables must have.

    Attributes:
        seed: decides the rows.
        delivered: length of the script.
        complete: the tables that have every result after each run. In the others, results wait for the watermark, and
            only the end of the input emits the last ones.
    """

    seed: int
    delivered: int = 0
    complete: frozenset[str] = frozenset()

    @abstractmethod
    def deliver(self, count: int) -> None:
        """Makes the script that many rows long."""

    def deliver_more(self, rows: int) -> None:
        self.delivered += rows
        self.deliver(self.delivered)

    @abstractmethod
    def found(self) -> Tables:
        """The rows of the tables."""

    @abstractmethod
    def wanted(self) -> Tables:
        """The rows that plain Python computes from all delivered ones."""

    def check_all(self, *, drained: bool = True) -> None:
        """Every table has the rows of plain Python; before the end of the input, some of them may wait."""
        found, wanted = self.found(), self.wanted()
        assert found.keys() == wanted.keys() >= self.complete
        for name, rows in wanted.items():
            assert found[name] == rows or (name not in self.complete and not drained and found[name] <= rows), name

    def waiting(self) -> set[str]:
        found = self.found()
        return {name for name, rows in self.wanted().items() if found[name] != rows}

    def write(self, name: str, rows: Sequence[Row], below: str = "") -> None:
        """Writes a script, and what is new in it as one more file of a folder, which Spark reads."""
        lines = [json.dumps(row) + "\n" for row in rows]
        (self.folder / f"{name}.jsonl").write_text("".join(lines))
        files = self.folder / "in" / below
        files.mkdir(parents=True, exist_ok=True)
        known = sum(len(file.read_text().splitlines()) for file in files.iterdir())
        (files / f"{len(rows):04}.json").write_text("".join(lines[known:]))
