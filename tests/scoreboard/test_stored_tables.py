"""Tables in a bucket that many objects and unfinished uploads are in."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch
from urllib.parse import unquote

import msgspec
from deltalake import DeltaTable

from stateflow import DeltaSource, FileSource
from stateflow.api.file_log import BatchLimits, BatchPlanner, StoredFiles
from stateflow.api.input_files import FileShare
from stateflow.errors import StorageError
from tests.scoreboard.jobs import KILLED, check_complete, checkpoint_settings, kill_after
from tests.scoreboard.row import Round, Row
from tests.servers.faults import BUSY, CUT_ANSWER, LOST_ANSWER, LOST_REQUEST, Faults, ProxyHandler, fault_proxy
from tests.servers.running import azure_request, azure_server, s3_server
from tests.support import delta_tables
from tests.support.delta_reads import batches_of
from tests.support.job_fixture import SLICE, multiset
from tests.support.jobs.accounts import Movement
from tests.support.object_stores import behind_faults
from tests.support.patched_processes import IN_PARTS
from tests.support.processes import wait_for
from tests.support.root_files import Chain
from tests.support.table_jobs import ContainerJob, FoldersJob, in_bucket, in_container

_STORAGE, _LONGEST = 5, 6.0
"""Exit code of an error about the storage, and seconds after which a run is killed at the latest."""
_SHARE = 0.03
_KILLS = 3


@dataclass(frozen=True)
class _Site:
    """An S3 server behind a proxy.

    Attributes:
        server: its folder.
        variables: of the environment of clients.
    """

    round_: Round
    server: Path
    variables: Mapping[str, str]
    faults: Faults

    @property
    def objects(self) -> Path:
        return self.server / "data" / "bucket"

    @contextmanager
    def job(self, **variables: str) -> Iterator[FoldersJob]:
        settings = checkpoint_settings(self.round_)
        places = in_bucket(self.server, settings=settings, variables={**self.variables, **variables})
        job = FoldersJob.create(self.round_.folder / "job", "delta", **places)
        try:
            yield job
        finally:
            job.end_all()


@contextmanager
def _site(round_: Round, kinds: tuple[str, ...], handler: type[ProxyHandler] = ProxyHandler) -> Iterator[_Site]:
    faults, server = Faults(random.Random(round_.rng.random()), 0.0, kinds), round_.folder / "s3"
    with ExitStack() as stack:
        variables = stack.enter_context(s3_server(server, "bucket"))
        proxy = stack.enter_context(fault_proxy(variables["AWS_ENDPOINT_URL"], faults, handler))
        yield _Site(round_, server, {**variables, "AWS_ENDPOINT_URL": proxy}, faults)


# -- ten thousand objects ---------------------------------------------------------------------------------------------

_OBJECTS = 10_000
_LATE, _SAMPLE = 700, 40
_INPUT = "s3://bucket/in"
_ATTEMPT = re.compile(r"-[A-Za-z0-9]+(-\d+\.zstd\.parquet)$")


class _Line(msgspec.Struct):
    name: str
    number: int


@Row(9, "ten-thousand-objects", plays=(0, 4, 24), mutants=("first-page", "half-a-list"), within=6)
def test_ten_thousand_objects_under_a_prefix_are_neither_lost_nor_doubled(round_: Round) -> int:
    """More than 10,000 objects under a prefix, a network that loses and cuts answers, and a busy server: input of a
    source, planned by drivers that die; versions of a table's log, or leftovers of a killed run, with drivers that are
    killed.

    Each object is in one batch, of the run that has found it, with its rows; or as for tables-in-buckets, and
    `DeltaSource` reads the rows that delta-rs reads.
    """
    with _site(round_, (*BUSY, LOST_REQUEST, LOST_ANSWER, *[CUT_ANSWER] * 3)) as site:
        killed = _plan_input(site) if round_.seed % 2 == 0 else _kill_runs(site)
        return killed + site.faults.injected.total()


def _plan_input(site: _Site) -> int:
    """Plans the batches of a source as runs do of which many are killed; returns how many were."""
    rng, count = site.round_.rng, _OBJECTS + site.round_.rng.randrange(1, 500)
    names = [f"day={n % 7}/a b [{n % 100}]%é/{n:05}.json" for n in range(count)]
    late = set(rng.sample(names, _LATE))
    _write_lines(site, [name for name in names if name not in late])
    plans, killed = _Plans(site.round_.folder / "log", rng), 0
    with patch.dict(os.environ, site.variables):
        site.faults.share = 2 * _SHARE
        while late or len(plans.planned) < count:
            waiting = set(_written(site)) - set(plans.planned)
            # A run whose list fails four times ends with this error.
            with suppress(StorageError):
                if not plans.run():
                    killed += 1
                    continue
                missed = len(waiting - set(plans.planned))
                assert not missed, f"a run ended without {missed} objects"
                _write_lines(site, sorted(late))
                late.clear()
        site.faults.share = 0
        assert plans.planned == Counter(names)
        _check_rows(rng.sample(names, _SAMPLE))
    return killed


@dataclass
class _Plans:
    """The batches that runs have planned; `log`: of the source, and `planned`: how many of them have a file."""

    log: Path
    rng: random.Random
    planned: Counter[str] = field(default_factory=Counter)
    position: int = -1

    def run(self) -> bool:
        """Plans the batches of a run, which may be killed at any of them; returns whether it has come to its end."""
        limits = BatchLimits(files=self.rng.randrange(500, 3000))
        planner = BatchPlanner(StoredFiles(_INPUT), limits, self.log)
        planner.end_with_present_files()
        while (entry := planner.next_entry(self.position)) != self.position:
            if self.rng.random() < 0.3:
                return False
            self.position = entry
            self.planned.update(_entry(self.log, entry))
        return True


def _write_lines(site: _Site, names: list[str]) -> None:
    for name in names:
        path = site.objects / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"name": name, "number": int(path.stem)}) + "\n")


def _written(site: _Site) -> list[str]:
    folder = site.objects / "in"
    return [str(path.relative_to(folder)) for path in folder.rglob("*.json")]


def _entry(log: Path, number: int) -> list[str]:
    """The names of the files of an entry, read as Spark's log is defined."""
    path = next(path for path in log.iterdir() if path.name in (str(number), f"{number}.compact"))
    lines = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    return [_name(line["path"]) for line in lines if line["batchId"] == number]


def _name(uri: str) -> str:
    return unquote(uri.removeprefix(f"{_INPUT}/"))


def _check_rows(names: list[str]) -> None:
    source = FileSource(_INPUT, schema=_Line, format="json")
    files = [file for file in StoredFiles(_INPUT).list() if _name(file.path) in names]
    format = source.file_format([file.path for file in files])
    assert format is not None
    shares = [FileShare(file.path, 0, file.size, file.size, file.version) for file in files]
    rows = [row for share in shares for batch in format.read(share, source.schema) for row in batch.to_pylist()]
    assert {row["name"]: row["number"] for row in rows} == {name: int(Path(name).stem) for name in names}
    assert len(rows) == len(names)


def _kill_runs(site: _Site) -> int:
    """Kills runs of a job whose table has a long log, or many leftovers of a killed run; returns how many died."""
    rng = site.round_.rng
    with site.job() as job:
        chain, table = Chain(job.root), job.table("movements")
        job.deliver(SLICE)
        job.finish()
        if site.round_.seed % 4 == 1:
            _lengthen_log(table, rng.randrange(20, 1500))
        else:
            _leave_files(table)
            if rng.random() < 0.5:
                # Then a start lists all files of the table.
                shutil.rmtree(table / ".stateflow-runs")
        killed = 0
        site.faults.share = _SHARE
        for _ in range(_KILLS):
            job.deliver_more(2 * SLICE)
            run = job.start()
            kill_after(rng.uniform(0, _LONGEST), run, chain.look)
            ended = run.wait(chain.look)
            assert ended.code in (0, KILLED, _STORAGE), str(ended)
            killed += ended.code == KILLED
        check_complete(job, chain)
        with patch.dict(os.environ, site.variables):
            source = DeltaSource("s3://bucket/tables/movements", schema=Movement)
            read = [row for _, batch in batches_of(source) for row in batch.to_pylist()]
        assert multiset(read) == multiset(delta_tables.rows(table))
    return killed


def _lengthen_log(table: Path, since_checkpoint: int) -> None:
    """Adds versions of another writer without rows, and a checkpoint so many versions before the newest."""
    first = DeltaTable(str(table)).version() + 1
    for version in range(first, first + _OBJECTS):
        action = {"commitInfo": {"timestamp": 1_700_000_000_000 + version, "operation": "OTHER"}}
        delta_tables.entry_path(table, version).write_text(json.dumps(action))
        if version == first + _OBJECTS - since_checkpoint:
            DeltaTable(str(table)).create_checkpoint()


def _leave_files(table: Path) -> None:
    """Adds files of a run that no version has."""
    example = next(table.glob("stateflow-*.parquet"))
    for number in range(_OBJECTS):
        os.link(example, table / _ATTEMPT.sub(rf"-left{number}\1", example.name))


# -- uploads in parts -------------------------------------------------------------------------------------------------

_SMALL = "500"
"""Files with more bytes are uploaded in parts: those of tables, of the state, and manifests."""
_MOST_LATER = 3
_FAULTS_OF_UPLOADS = (*BUSY, LOST_REQUEST, *[LOST_ANSWER] * 3)


@dataclass
class _Held:
    """A request to end an upload that arrives when it is let go, and whose answer is lost.

    Attributes:
        skip: how many such requests arrive before it.
    """

    skip: int
    is_held: threading.Event = field(default_factory=threading.Event)
    is_let_go: threading.Event = field(default_factory=threading.Event)
    has_arrived: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def is_next(self) -> bool:
        with self._lock:
            self.skip -= 1
            return self.skip == -1


@dataclass
class _Uploads:
    """The uploads that a proxy passes on; `held`: the one that is held, if any."""

    held: _Held | None = None

    @property
    def handler(self) -> type[_UploadsProxy]:
        return type("OfUploads", (_UploadsProxy,), {"uploads": self})


class _UploadsProxy(ProxyHandler):
    """Injects faults into the requests of uploads in parts only."""

    uploads: _Uploads

    def do_GET(self) -> None:
        held, is_upload = self.uploads.held, any(part in self.path for part in ("uploadId=", "?uploads", "comp=block"))
        is_end = (self.command == "POST" and "uploadId=" in self.path) or "comp=blocklist" in self.path
        if is_end and held is not None and held.is_next():
            self._hold(held)
        elif is_upload and self.command != "DELETE":
            super().do_GET()
        else:
            self.send(self.forward(self.rfile.read(int(self.headers.get("Content-Length") or 0))))

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

    def _hold(self, held: _Held) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        held.is_held.set()
        held.is_let_go.wait()
        self.forward(body)
        held.has_arrived.set()
        self.reset()


@Row(9, "unfinished-uploads", plays=(0, 6, 40), mutants=("forgotten-run", "ended-upload"), within=12)
def test_uploads_that_do_not_end_or_end_late_lose_and_double_nothing(round_: Round) -> int:
    """As tables-in-buckets, with files that are uploaded in parts: drivers are killed during an upload, which never
    ends, or ends after up to two later runs; requests and answers of uploads are lost, and the server is busy.

    As for tables-in-buckets; each run succeeds, is killed, or fails with an error about the storage.
    """
    uploads = _Uploads()
    with _site(round_, _FAULTS_OF_UPLOADS, uploads.handler) as site, site.job(**{IN_PARTS: _SMALL}) as job:
        late = _play_uploads(job, uploads, site.faults, round_.rng)
        unfinished = len(os.listdir(site.server / "data" / ".localbucket-uploads"))
        return late + unfinished + site.faults.injected.total()


@Row(9, "uncommitted-blocks", plays=(0, 4, 24), mutants=("ended-blocks",), within=12)
def test_blocks_that_are_not_committed_or_committed_late_lose_and_double_nothing(round_: Round) -> int:
    """As unfinished-uploads, with an Azure server: parts are blocks of a name, of whichever upload, and a dead driver
    leaves them uncommitted.

    As for unfinished-uploads.
    """
    uploads, faults = _Uploads(), Faults(random.Random(round_.rng.random()), 0.0, _FAULTS_OF_UPLOADS)
    with ExitStack() as stack:
        variables = stack.enter_context(azure_server(round_.folder / "azure", "bucket"))
        changed = stack.enter_context(behind_faults(variables, faults, uploads.handler))
        settings, changed = checkpoint_settings(round_), {**changed, IN_PARTS: _SMALL}
        places = in_container(round_.folder / "azure", settings=settings, variables=changed)
        job = ContainerJob.create(round_.folder / "job", "delta", **places)
        stack.callback(job.end_all)
        late = _play_uploads(job, uploads, faults, round_.rng)
        return late + _uncommitted(variables["AZURE_ENDPOINT"]) + faults.injected.total()


def _uncommitted(address: str) -> int:
    """Returns how many names of the container have uncommitted blocks only."""
    listing = {"restype": "container", "comp": "list"}
    every, committed = (
        azure_request(address, "GET", "bucket", query).text.count("<Name>")
        for query in ({**listing, "include": "uncommittedblobs"}, listing)
    )
    return every - committed


def _play_uploads(job: FoldersJob, uploads: _Uploads, faults: Faults, rng: random.Random) -> int:
    """Kills and disturbs runs during their uploads; returns how many uploads ended late."""
    chain = Chain(job.root)
    job.deliver(SLICE)
    job.finish()
    late = 0
    for _ in range(_KILLS):
        job.deliver_more(3 * SLICE)
        if rng.random() < 0.6:
            late += _end_late(job, chain, uploads, rng)
        else:
            _interrupt(job, chain, faults, rng)
    check_complete(job, chain)
    return late


def _end_late(job: FoldersJob, chain: Chain, uploads: _Uploads, rng: random.Random) -> int:
    """Kills a run that waits for the end of an upload, which comes when up to two later runs have ended."""
    uploads.held = held = _Held(rng.randrange(8))
    run = job.start()
    wait_for(lambda: held.is_held.is_set() or run.poll() is not None, lambda: f"the end of an upload of {run}")
    run.kill()
    run.wait(chain.look)
    uploads.held = None
    if not held.is_held.is_set():
        return 0
    for _ in range(rng.randrange(_MOST_LATER)):
        job.deliver_more(SLICE)
        job.finish()
    held.is_let_go.set()
    wait_for(held.has_arrived.is_set, lambda: "the end of the upload")
    return 1


def _interrupt(job: FoldersJob, chain: Chain, faults: Faults, rng: random.Random) -> None:
    faults.share = rng.uniform(0.05, 0.3)
    run = job.start()
    if rng.random() < 0.5:
        kill_after(rng.uniform(0, _LONGEST), run, chain.look)
    ended = run.wait(chain.look)
    assert ended.code in (0, KILLED, _STORAGE), str(ended)
    faults.share = 0
