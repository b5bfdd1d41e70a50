"""The fuzz targets: each parser of input that others may have written, with real input to change."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from urllib3 import Retry

from stateflow.api.schema import RowSchema
from stateflow.bootstrap.spark_imported_states import ImportedState
from stateflow.bootstrap.state_files import parse_states
from stateflow.checkpoint.history import (
    HistoryIndexWriter,
    background_failures,
    check_history,
    external_savepoints,
    read_history,
    read_origin,
    read_pending_records,
    read_records,
    run_failure,
)
from stateflow.checkpoint.job_requests import is_expired, open_requests, post, post_answer, read_answer
from stateflow.checkpoint.log.documents import ClaimState, Origin, Request, RequestAnswer, RequestKind, SavepointClaim
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import files_of, state_bytes
from stateflow.checkpoint.restore.targets import resolve_target
from stateflow.checkpoint.savepoints.catalog import list_savepoints, open_savepoint
from stateflow.checkpoint.savepoints.claim_slots import check_claimable, claim_savepoint, is_claimed, is_claimed_by
from stateflow.clock import SystemClock
from stateflow.config.sources import parse_assignments, read_toml, resolve
from stateflow.connectors.delta.log import read_head
from stateflow.connectors.delta.sink import _differences, _refusals
from stateflow.connectors.delta.versions import _columns, _missing, read_entry, restored
from stateflow.connectors.table_folder import DiskFolder
from stateflow.errors import ConfigError, JobDefinitionError
from stateflow.operations.job_savepoints import describe_savepoint
from stateflow.runtime.job_loader import load_function
from stateflow.runtime.planning.state_discovery import DeclaredOperator
from stateflow.storage import MemoryStorage
from stateflow.storage.hdfs import HdfsStorage
from stateflow.storage.paths import claim_slot
from stateflow.types.descriptors import ValueStateDescriptor
from tests.fuzz.avro_target import avro_value
from tests.fuzz.mutations import changed_bytes, changed_document, changed_json, random_text, sealed
from tests.fuzz.query_targets import query_request, server_answer, server_lease
from tests.fuzz.spark_checkpoint_target import spark_checkpoint
from tests.fuzz.state_table_target import state_table
from tests.fuzz.store_targets import store_manifest, table_file
from tests.fuzz.target import Target
from tests.servers.hostile import answer, hostile_server
from tests.support.delta_tables import entry_path


class _Row(msgspec.Struct):
    id: int
    text: str | None = None
    numbers: list[int] | None = None


def _job_root(folder: Path) -> MemoryStorage:
    """The job root of the corpus, in memory."""
    storage = MemoryStorage()
    root = folder / "root"
    for path in sorted(root.rglob("*")):
        if path.is_file():
            storage.put_new(str(path.relative_to(root)), path.read_bytes())
    return storage


def _put(storage: MemoryStorage, key: str, data: bytes) -> None:
    storage.delete([key])
    storage.put_new(key, data)


def _named(storage: MemoryStorage, part: str) -> list[str]:
    return [blob.key for blob in storage.list("") if part in blob.key]


# -- documents of a job root ------------------------------------------------------------------------------------------


def _opened(storage: MemoryStorage) -> JobRoot:
    return JobRoot.open(storage, SystemClock(), "fuzz")


@contextmanager
def log_entry(folder: Path) -> Iterator[Target]:
    storage = _job_root(folder)
    keys = _named(storage, "log/")
    intact = [storage.get(key) for key in keys]

    def read(data: bytes) -> None:
        _put(storage, keys[-1], data)
        root = _opened(storage)
        head = root.head()
        root.checkpoints.restorable(head)
        root.checkpoints.list_kept(head)
        root.checkpoints.oldest_restorable(head)
        read_pending_records(root, head)

    yield Target(lambda rng: changed_document(rng, rng.choice(intact), intact), read)


@contextmanager
def savepoint(folder: Path) -> Iterator[Target]:
    storage = _job_root(folder)
    (key,) = _named(storage, "/_savepoint")
    manifests = [storage.get(k) for k in _named(storage, "manifest.json")]
    intact = storage.get(key)

    def read(data: bytes) -> None:
        _put(storage, key, data)
        list_savepoints(storage)
        stored = open_savepoint(storage, key.removesuffix("_savepoint"))
        describe_savepoint(stored)
        list(stored.files())
        state_bytes(stored.document.manifest.operators)
        files_of(stored.document.manifest)
        stored.document.manifest.pending_records(1)

    yield Target(lambda rng: changed_document(rng, intact, [intact, *manifests]), read)


@contextmanager
def savepoint_claim(folder: Path) -> Iterator[Target]:
    storage = _job_root(folder)
    (key,) = _named(storage, "/_savepoint")
    prefix = key.removesuffix("_savepoint")
    stored = open_savepoint(storage, prefix)
    claim_savepoint(storage, prefix, SavepointClaim(state=ClaimState.CLAIMED, job_uuid="a" * 32, by="me", at="now"))
    slot = claim_slot(prefix, 1)
    intact = storage.get(slot)

    def read(data: bytes) -> None:
        _put(storage, slot, data)
        describe_savepoint(stored)
        is_claimed(storage, prefix)
        is_claimed_by(storage, prefix, "a" * 32, 0)
        check_claimable(storage, prefix, "b" * 32)

    yield Target(lambda rng: changed_document(rng, intact, [intact]), read)


@contextmanager
def history(folder: Path) -> Iterator[Target]:
    storage = _job_root(folder)
    keys = _named(storage, "history/")
    records = [storage.get(key) for key in keys]
    names = [*keys, *(f"history/{1:020d}-{kind}.json" for kind in ("background-gc", "failure-run", "fork-made"))]
    names += [f"history/{1:020d}-checkpoints-2-0a0a0a0a.json", f"history/{3:020d}-savepoint-x.json"]
    records += [b"[%b]" % b",".join(r for r in records if r.startswith(b"{"))]
    indexes = _HistoryIndexes(storage)

    def mutate(rng: random.Random) -> tuple[str, bytes]:
        if rng.random() < 0.3:
            return indexes.key, changed_document(rng, indexes.intact, [indexes.intact])
        return rng.choice(names), changed_json(rng, rng.choice(records), records)

    def read(given: tuple[str, bytes]) -> None:
        key, data = given
        if key == indexes.key:
            indexes.read(data)
            return
        _put(storage, key, data)
        read_history(storage)
        read_records(storage, 5)
        background_failures(storage, 1)
        run_failure(storage, 1)
        read_origin(storage)
        external_savepoints(storage, (1, 2, 3))
        assert check_history(_opened(storage)).verified <= {*keys}
        storage.delete([key])

    yield Target(mutate, read)


class _HistoryIndexes:
    """The newest index of the history, which a forged log entry refers to."""

    def __init__(self, storage: MemoryStorage) -> None:
        self._storage = storage
        self._entry_key = _named(storage, "log/")[-1]
        self._entry = json.loads(storage.get(self._entry_key).split(b"\n")[0])
        self.key = str(self._entry["history"]["key"])
        self.intact = storage.get(self.key)

    def read(self, data: bytes) -> None:
        """Checks the history with another index, and continues the index as a run does."""
        handle = {"key": self.key, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        _put(self._storage, self.key, data)
        _put(self._storage, self._entry_key, sealed(json.dumps({**self._entry, "history": handle}).encode()))
        root = _opened(self._storage)
        if changed := check_history(root).error():
            assert str(changed)
        head = root.head()
        writer = HistoryIndexWriter(root, head)
        writer.update(head, 5)
        writer.list_needed_objects(head)
        if writer.handle and writer.handle.key != self.key:
            self._storage.delete([writer.handle.key])


@contextmanager
def request(folder: Path) -> Iterator[Target]:
    storage = _job_root(folder)
    asked = Request(
        id="q", kind=RequestKind.SAVEPOINT, savepoint="s", origin=Origin.MANUAL, by="me", at="2026-01-01T00:00:00+00:00"
    )
    post(storage, asked)
    post_answer(storage, RequestAnswer(id="p", status="done", at="2026-01-01T00:00:00+00:00"))
    intact = {key: storage.get(key) for key in ("requests/q", "requests/p.done")}

    def mutate(rng: random.Random) -> tuple[str, bytes]:
        key = rng.choice(list(intact))
        return key, changed_document(rng, intact[key], list(intact.values()))

    def read(given: tuple[str, bytes]) -> None:
        _put(storage, *given)
        for found in open_requests(storage):
            is_expired(found, SystemClock().now())
        read_answer(storage, "p")

    yield Target(mutate, read)


# -- tables and servers -----------------------------------------------------------------------------------------------


@contextmanager
def delta_log(folder: Path) -> Iterator[Target]:
    table = folder / "delta"
    lines = [line for path in sorted((table / "_delta_log").glob("*.json")) for line in path.read_bytes().splitlines()]
    known = read_head(DiskFolder(table), "app")
    assert known is not None
    path = entry_path(table, known.version + 1)

    def mutate(rng: random.Random) -> bytes:
        return b"\n".join(changed_json(rng, rng.choice(lines), lines) for _ in range(rng.randrange(1, 4)))

    def read(data: bytes) -> None:
        path.write_bytes(data)
        entry = read_entry(DiskFolder(table), known.version + 1)
        assert entry is not None
        restored(entry)
        for file in (*entry.added, *entry.removed):
            list(_missing(DiskFolder(table), file))
            assert file.key
        head = read_head(DiskFolder(table), "app", known)
        assert head is not None
        _columns(head.metadata)
        list(_refusals(head, RowSchema.of(_Row), ()))
        _differences(head.metadata.fields(), RowSchema.of(_Row))

    yield Target(mutate, read)


@contextmanager
def webhdfs_answer(folder: Path) -> Iterator[Target]:
    status = {"pathSuffix": "", "type": "FILE", "length": 1, "modificationTime": 1}
    bodies = [
        {"FileStatus": {**status, "owner": "o", "childrenNum": 0}},
        {"FileStatuses": {"FileStatus": [{**status, "pathSuffix": "a"}, {**status, "pathSuffix": "b"}]}},
        {"boolean": True},
        {"RemoteException": {"exception": "FileNotFoundException", "javaClassName": "java.io.X", "message": "m"}},
    ]
    intact = [json.dumps(body).encode() for body in bodies]
    reply: list[bytes] = [b""]

    def mutate(rng: random.Random) -> tuple[bytes, int]:
        body = changed_json(rng, rng.choice(intact), intact)
        whole = answer(rng.choice([200, 200, 200, 201, 307, 401, 403, 404, 500]), body)
        if rng.random() < 0.1:
            head, _, rest = whole.partition(b"\r\n\r\n")
            whole = changed_bytes(rng, head, intact) + b"\r\n\r\n" + rest
        return whole, rng.randrange(5)

    with hostile_server(lambda _: iter(reply)) as server:
        storage = HdfsStorage("webhdfs", server.host, "/jobs/a", Retry(total=0))
        acts: list[Callable[[], object]] = [
            lambda: storage.get("x", 1000),
            lambda: storage.size("x"),
            lambda: storage.list("log/"),
            lambda: storage.delete(["log/x"]),
            lambda: storage.put_new("x", b"data"),
        ]

        def read(given: tuple[bytes, int]) -> None:
            reply[0], act = given
            server.asked.clear()
            acts[act]()

        yield Target(mutate, read)


# -- texts of users ---------------------------------------------------------------------------------------------------

PIECES = [
    *("latest", "before:", "rows", "=", "1", "²", "٣", "9" * 5000, "-", "e999", "2026-01-31T03:00", "+14:00", "Z"),
    *("0001-01-01", "9999-12-31T23:59:59", "-23:59", "[" * 3000, "{", '"', "\\", "\0", "/", "..", "file://", "s3://"),
    *("webhdfs://h:1/x", "memory://", "a" * 300, "\ud800", "\x1b[2J", " ", "\n", "NaN", "true", "null", "é", "%2e"),
]
SETTINGS = [
    *("checkpoints", "retained", "run.max_batches", "max_parallelism", "local_dir", "spark.conf.x", "state.backend"),
    *(
        "restart.exponential_delay.attempts",
        "checkpoints.min_pause",
        "storage.shared",
        ".",
        "=",
        "0",
        "1",
        "-1",
        "1e999",
    ),
    *("1h", "9" * 400 + "d", "0.1", "inf", "true"),
]
TOML = [*PIECES, *SETTINGS, "\n", "[", "]", "{", "}", ",", '"', "a." * 700, "[[]]," * 500, '"""', "'''"]


@contextmanager
def target(folder: Path) -> Iterator[Target]:
    root = _opened(_job_root(folder))
    head = root.head()
    yield Target(lambda rng: random_text(rng, PIECES), lambda text: resolve_target(root, head, text))


@contextmanager
def setting(folder: Path) -> Iterator[Target]:
    pieces = [*PIECES, *SETTINGS, *SETTINGS]

    def mutate(rng: random.Random) -> str:
        name = f"{rng.choice(SETTINGS)}=" if rng.random() < 0.7 else ""
        return name + (rng.choice(pieces) if name else random_text(rng, pieces))

    yield Target(mutate, lambda text: resolve(parse_assignments((text,))))


@contextmanager
def settings_file(folder: Path) -> Iterator[Target]:
    path = folder / "settings.toml"

    def read(text: str) -> None:
        path.write_bytes(text.encode(errors="surrogatepass"))
        resolve(read_toml(path))

    yield Target(lambda rng: random_text(rng, TOML), read)


@contextmanager
def state_option(folder: Path) -> Iterator[Target]:
    """Options of the command line that name a state, columns of a query of Spark, and a function."""
    name = "sum.a=b"
    operators = {
        "sum": DeclaredOperator(
            "sum", {"shop": "string"}, {"a=b": ValueStateDescriptor("a=b", int)}, {}, {}, {}, (), ()
        )
    }
    numbers = [f"{part}={number}" for part in ("batch", "operator") for number in ("1", "²", "٣", "-1", "9" * 5000)]
    pieces = [*PIECES, *numbers, "#", ",", "=", "variable=", "store=", "value", "json", "dumps", ":", ".py"]

    def mutate(rng: random.Random) -> tuple[str, str, str]:
        state = f"{name}=spark:{folder}#" if rng.random() < 0.9 else ""
        column = f"{name}." if rng.random() < 0.7 else ""
        return (
            state + random_text(rng, rng.choice([pieces, numbers])),
            column + random_text(rng, pieces),
            random_text(rng, pieces),
        )

    def read(given: tuple[str, str, str]) -> None:
        state, column, function = given
        with suppress(ConfigError, JobDefinitionError):
            load_function(function)
        for found in parse_states([state], operators, 128, [column] if len(column) % 2 else []):
            assert isinstance(found, ImportedState) and found.name == name

    yield Target(mutate, read)


TARGETS = {
    "manifest": store_manifest,
    "table-file": table_file,
    "state-table": state_table,
    "spark-checkpoint": spark_checkpoint,
    "avro-value": avro_value,
    "delta-log": delta_log,
    "savepoint": savepoint,
    "savepoint-claim": savepoint_claim,
    "log-entry": log_entry,
    "history": history,
    "request": request,
    "webhdfs-answer": webhdfs_answer,
    "target": target,
    "query-request": query_request,
    "server-lease": server_lease,
    "server-answer": server_answer,
    "setting": setting,
    "settings-file": settings_file,
    "state-option": state_option,
}
"""By name: a context manager that takes the folder of the corpus."""
