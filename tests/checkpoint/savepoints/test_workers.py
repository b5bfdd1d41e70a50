"""Workers of savepoints: how state is divided among them and sorted, errors, crashes, and the end of either process."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stateflow.checkpoint.log.documents import Manifest, OperatorState
from stateflow.checkpoint.savepoints.canonical.buckets import BucketWriter, bucket_file, new_subtasks, read_sorted
from stateflow.checkpoint.savepoints.canonical.worker import SortBuckets, WorkerTask, WriteShare, without_duplicates
from stateflow.checkpoint.savepoints.canonical.worker_pool import (
    WORKER_PROGRAM,
    LocalWorkers,
    RunningWorker,
    Volume,
    WaitingTasks,
    encode_task,
    error_of_end,
)
from stateflow.checkpoint.savepoints.canonical.writer import (
    Destination,
    Shard,
    divide_key_groups,
    shards_of,
    shares_of,
    store_files,
)
from stateflow.config.settings import SavepointSettings
from stateflow.errors import CorruptFile, DataError, InternalError, MissingFile
from stateflow.private_files import PREFIX
from stateflow.state.backends import canonical_file
from stateflow.state.backends.canonical_file import CanonicalHeader
from stateflow.state.backends.entry_stream import EntryColumns, blocks_of, entries_of
from stateflow.state.handles import FileHandle, StateFile, SubtaskState
from stateflow.state.rehash import Rehash
from stateflow.storage import MemoryStorage, PosixStorage
from stateflow.types.key_encoding import encode_key
from stateflow.types.key_groups import KeyGroupRange, key_group
from tests.support.errors import raises
from tests.support.stores import RocksStoreFixture, base_of
from tests.support.table_files import ForgedTable, restart_outside

pytestmark = pytest.mark.long(reason="starts processes")

GIB = 1 << 30
RANGES = st.tuples(st.integers(0, 32767), st.integers(0, 32767)).map(lambda r: KeyGroupRange(min(r), max(r)))


@given(RANGES, st.integers(1, 40000))
def test_divided_key_groups_are_contiguous_and_of_about_equal_length(groups: KeyGroupRange, count: int) -> None:
    ranges = divide_key_groups(groups, count)
    assert [g for r in ranges for g in range(r.first, r.last + 1)] == list(range(groups.first, groups.last + 1))
    assert len(ranges) == min(count, len(groups))
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


def _subtask(number: int, size: int) -> SubtaskState:
    handle = FileHandle(key=f"data/{number}", size=size, sha256=f"{number:064}")
    files = [StateFile(handle=handle, local_name="000001.sst")] if size else []
    return SubtaskState(
        subtask=number, first_group=100 * number, last_group=100 * number + 99, snapshot=f"s{number}", files=files
    )


def _manifest(*sizes: int) -> Manifest:
    subtasks = [_subtask(number, size) for number, size in enumerate(sizes)]
    operator = OperatorState(uid="a", parallelism=len(sizes), key_types=[], key_names=[], states=[], subtasks=subtasks)
    return Manifest(job_uuid="j", generation=1, ordinal=1, operators=[operator], sources=[])


def test_a_subtask_has_a_worker_for_each_five_gib_and_at_most_four() -> None:
    sizes = [0, 1, 5 * GIB, 5 * GIB + 1, 15 * GIB, 15 * GIB + 1, 900 * GIB]
    shards = shards_of(_manifest(*sizes), 1000, SavepointSettings())
    counts = [sum(shard.state.subtask == number for shard in shards) for number in range(len(sizes))]
    assert counts == [0, 1, 1, 2, 3, 4, 4]


@given(st.lists(st.integers(0, 10**12)), st.integers(1, 10**12), st.integers(1, 200), st.integers(0, 10**12))
def test_the_shares_of_workers_have_each_key_group_with_state_once(
    sizes: list[int], worker_bytes: int, most: int, worth: int
) -> None:
    settings = SavepointSettings(worker_bytes=worker_bytes, max_workers=most)
    shards = shards_of(_manifest(*sizes), 32768, settings)
    owned = {group for number, size in enumerate(sizes) if size for group in range(100 * number, 100 * number + 100)}
    written = [group for shard in shards for group in range(shard.groups.first, shard.groups.last + 1)]
    assert written == sorted(owned)
    shares = shares_of(shards, worth)
    assert [shard for share in shares for shard in share] == shards
    assert all(len(share) == 1 or sum(shard.bytes for shard in share) <= worth for share in shares)


def test_each_file_of_an_object_is_read_by_its_part(tmp_path: Path) -> None:
    storage, contents = MemoryStorage(), [[b"one", b"!"], [b"two"], [b"three"]]
    stored = store_files(contents, storage, Destination(folder="savepoints/s/"), tmp_path)
    for number, (file, chunks) in enumerate(zip(stored, contents, strict=True)):
        assert file.part is not None
        storage.fetch_part(f"savepoints/s/{file.handle.key}", file.part.offset, file.size, tmp_path / str(number))
        assert (tmp_path / str(number)).read_bytes() == b"".join(chunks)


def test_a_subtask_with_other_key_groups_has_the_earliest_timer_of_all() -> None:
    """Its keys may come from each of the old subtasks."""
    states = [
        SubtaskState(
            subtask=n, first_group=n, last_group=n, snapshot="", event_timer=event, processing_timer=processing
        )
        for n, (event, processing) in enumerate([(7, None), (5, None), (None, 9)])
    ]
    operator = OperatorState(
        uid="op", parallelism=3, key_types=["string"], key_names=["key"], states=[], subtasks=states
    )
    manifest = Manifest(job_uuid="j", generation=1, ordinal=1, operators=[operator], sources=[])
    found = [(each.state.event_timer, each.state.processing_timer) for each in new_subtasks(manifest, 16)]
    assert found == [(5, 9)] * 3


def test_a_key_that_occurs_twice_is_refused_also_in_two_parts() -> None:
    header = CanonicalHeader(uid="op", key_types=["string"], max_parallelism=1, first_group=0, last_group=0, states=[])
    a, b = (bytes(2) + b"name" + encode_key((key,)) for key in ("a", "b"))
    for parts in ([[a, b, b]], [[a, b], [b]]):
        with raises(DataError, operator="op", state="", key="('b',)"):
            list(without_duplicates(header, [EntryColumns.of(keys, keys) for keys in parts]))
    (whole,) = without_duplicates(header, [EntryColumns.of([a, b], [a, b])])
    assert whole.keys.to_pylist() == [a, b]


ALL = KeyGroupRange(0, 127)
TO = Destination(folder="savepoint/")
CHANGED = (
    "import sys\n"
    "from stateflow.checkpoint.savepoints.canonical import worker\n"
    "from stateflow.state.backends.rocksdb import backend, check\n"
    "{change}\n"
    "worker.main(int(sys.argv[1]))"
)
"""The program of a worker, changed."""
CRASHING = (
    "check.check_table_file = lambda _: None; "
    "backend.RocksDBBackend.read_range = lambda self, *_: ((key, self.get(key)) for key, _ in self.scan(bytes()))"
)
"""Reads a forged store as it is, and looks keys up: no store is known that crashes RocksDB and passes the check."""
BLOCKED = "import ctypes; ctypes.PyDLL(None).pause()"
"""Waits for ever, and no other thread of the process can do anything."""
GRANDCHILD = (
    "import os, sys\n"
    "from stateflow.checkpoint.savepoints.canonical.worker_pool import RunningWorker\n"
    "worker = RunningWorker(eval(sys.argv[1]))\n"
    "if os.fork() == 0:\n"
    "    sys.stdin.read()\n"
    "    os._exit(0)\n"
    "print(worker.pid, flush=True)\n"
    "sys.stdin.read()"
)
"""A process with a worker, and with another child that it has forked, which has the pipes to the worker as well."""


class _Root:
    """A folder with stores of one subtask each."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "root"
        self.storage = PosixStorage(self.path)
        self.stores = RocksStoreFixture(folder, self.storage)

    def task(self, number: int) -> WorkerTask:
        """A task that writes the entries of a new store."""
        taken = self.stores.snapshot_of(entries(number))
        (state,) = base_of(taken).parts
        return self.task_for(state)

    def task_for(self, state: SubtaskState) -> WorkerTask:
        """A task that writes the entries of a state."""
        uri = self.storage.uri
        return WorkerTask(source=uri, target=uri, work=WriteShare(share=[_shard(state, ALL)], to=TO))

    def forged(self, attack: Callable[[ForgedTable], None]) -> WorkerTask:
        """A task with a store whose data file is changed, and has the hash that is recorded."""
        state = _state_of(self.task(0))
        (file,) = state.files
        table = ForgedTable(self.storage.get(file.handle.key))
        attack(table)
        data = table.sealed()
        key = f"data/{attack.__name__}"
        self.storage.put_new(key, data)
        handle = FileHandle(key=key, size=len(data), sha256=hashlib.sha256(data).hexdigest())
        return self.task_for(replace(state, files=[replace(file, handle=handle)]))

    def stored(self, file: StateFile) -> dict[bytes, bytes]:
        """The entries of a canonical file."""
        with (self.path / TO.folder / file.handle.key).open("rb") as stream:
            return dict(entries_of(canonical_file.decode_groups(stream, file.handle.key, ALL)))


def _shard(state: SubtaskState, groups: KeyGroupRange) -> Shard:
    header = CanonicalHeader(
        uid="op", key_types=[], max_parallelism=128, first_group=groups.first, last_group=groups.last, states=[]
    )
    return Shard(operator=0, header=header, state=state, bytes=1)


def _state_of(task: WorkerTask) -> SubtaskState:
    assert isinstance(task.work, WriteShare)
    return task.work.share[0].state


def entries(number: int) -> dict[bytes, bytes]:
    """Entries that no other number has."""
    return {b"\0%c%05d" % (n, number): os.urandom(100) for n in range(100)}


@pytest.fixture
def root(tmp_path: Path) -> _Root:
    return _Root(tmp_path)


@pytest.fixture
def worker() -> Iterator[RunningWorker]:
    with RunningWorker() as worker:
        yield worker


def test_one_process_with_limits_does_several_tasks_and_continues_after_an_error(
    root: _Root, worker: RunningWorker
) -> None:
    missing = root.task(1)
    root.storage.delete([file.handle.key for file in _state_of(missing).files])
    forged = root.forged(restart_outside)
    results = [worker.run(task) for task in (root.task(2), missing, forged, root.task(3))]
    assert [bool(result.failure) for result in results] == [False, True, True, False]
    with raises(MissingFile):
        results[1].get_files()
    # Without a check of the structure, RocksDB skips the rest of a block after some changes, without an error.
    with raises(CorruptFile, file="data/restart_outside"):
        results[2].get_files()
    for number, result in ((2, results[0]), (3, results[3])):
        (file,) = result.get_files()
        assert {key[2:] for key in root.stored(file)} == {b"%05d" % number}
    process = psutil.Process(worker.pid)
    _, memory = process.rlimit(psutil.RLIMIT_DATA)
    assert 2 << 30 <= memory < 3 << 30
    seconds, _ = process.rlimit(psutil.RLIMIT_CPU)
    assert 60 <= seconds < 120


def test_a_worker_and_its_temporary_files_are_gone_after_the_with_statement(
    root: _Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(KeyboardInterrupt), RunningWorker() as worker:
        worker.run(root.task(1))
        raise KeyboardInterrupt
    assert not psutil.pid_exists(worker.pid)
    assert not list(tmp_path.glob(f"{PREFIX}*"))


def test_files_are_in_the_order_of_the_work_and_all_workers_end_after_an_error(root: _Root) -> None:
    tasks = [root.task(number) for number in range(5)]
    workers = LocalWorkers()
    workers.count, workers.worth_a_worker = 2, 0
    files = workers.do([task.work for task in tasks], Volume(root.storage, root.storage, 1))
    assert [{key[2:] for key in root.stored(file)} for file in files] == [{b"%05d" % n} for n in range(5)]
    root.storage.delete([file.handle.key for file in _state_of(tasks[1]).files])
    with raises(MissingFile):
        workers.run(tasks)
    assert not [child for child in psutil.Process().children() if _is_worker(child)]


def test_a_worker_takes_neighbours_then_the_last_task_of_the_longest_part(root: _Root) -> None:
    tasks = [root.task(1)] * 7
    waiting = WaitingTasks(tasks, 3)
    assert waiting.workers == 3
    taken = [waiting.take(worker) for worker in (0, 0, 0, 1, 0, 2, 1, 0)]
    assert [found and found[0] for found in taken] == [0, 1, 6, 2, 5, 4, 3, None]


def _is_worker(process: psutil.Process) -> bool:
    try:
        return WORKER_PROGRAM[-1] in process.cmdline()
    except psutil.Error:
        return False


def _changed(change: str) -> tuple[str, ...]:
    return sys.executable, "-c", CHANGED.format(change=change)


# -- the end of a worker -----------------------------------------------------------------------------------------------


def test_a_killed_worker_is_an_internal_error(root: _Root, worker: RunningWorker) -> None:
    os.kill(worker.pid, signal.SIGKILL)
    for _ in range(2):
        with raises(InternalError, exit_code=-signal.SIGKILL):
            worker.run(root.task(1))


def test_a_store_that_crashes_a_worker_is_a_corrupt_file_and_no_retry_helps(root: _Root) -> None:
    reason = "the process that read it ended with SIGSEGV"
    with (
        RunningWorker(_changed(CRASHING)) as worker,
        raises(CorruptFile, files=["data/restart_outside"], reason=reason) as caught,
    ):
        worker.run(root.forged(restart_outside))
    assert not caught.value.retryable


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGXCPU])
def test_only_a_crash_while_stored_state_is_read_is_a_corrupt_file(root: _Root, number: signal.Signals) -> None:
    task = root.task(1)
    assert type(error_of_end(task, -number)) is CorruptFile
    sorting = replace(task, work=SortBuckets(subtasks=[], folders=[], to=TO))
    for found in (error_of_end(sorting, -number), error_of_end(task, -signal.SIGKILL), error_of_end(task, 1)):
        assert type(found) is InternalError


def test_a_task_that_takes_too_long_ends_a_worker(root: _Root) -> None:
    change = "worker._SECONDS = 1; backend.RocksDBBackend.read_range = lambda *_: exec('" + BLOCKED + "')"
    with RunningWorker(_changed(change)) as worker, raises(InternalError, exit_code=-signal.SIGALRM):
        worker.run(root.task(1))


# -- the end of its parent ---------------------------------------------------------------------------------------------


def test_a_worker_ends_during_a_task_when_its_standard_input_does(root: _Root) -> None:
    """Also if the next task is in its standard input already."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        # A server that never answers.
        source = f"webhdfs://127.0.0.1:{server.getsockname()[1]}/job"
        task = replace(root.task(1), source=source, target=source)
        with _started() as child:
            assert child.stdin is not None
            child.stdin.write(encode_task(task) * 2)
            child.stdin.flush()
            connection, _ = server.accept()
            with connection:
                assert connection.recv(1) and child.poll() is None
                child.stdin.close()
                assert child.wait(30) == 1


def test_a_worker_ends_with_its_parent_while_another_child_has_the_pipe() -> None:
    change = BLOCKED.join(["worker.isolate = lambda _: exec('", "')"])
    command = [sys.executable, "-c", GRANDCHILD, repr(_changed(change))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None and parent.stdout is not None
        worker = psutil.Process(int(parent.stdout.readline()))
        (other,) = [child for child in psutil.Process(parent.pid).children() if child.pid != worker.pid]
        parent.kill()
        parent.wait()
        # The system does not say how a process ended that is not a child.
        worker.wait(30)
        assert other.is_running()
        parent.stdin.close()
        other.wait(30)


def _started() -> subprocess.Popen[bytes]:
    command = (*WORKER_PROGRAM, str(os.getpid()))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


TYPES = ["string"]
GROUPS = 8
STARTS = [0, 3, 5]
STATE = struct.pack(">I", xxhash.xxh32_intdigest(b"seen"))
KEYS = st.tuples(st.text(max_size=40), st.binary(max_size=3))
"""A key, and what follows it in a stored key: in a map, many entries have the same key."""
Entries = dict[tuple[str, bytes], bytes]


def _stored(key: tuple[str, bytes], groups: int) -> bytes:
    group = key_group(key[:1], TYPES, groups)
    return struct.pack(">H", group) + STATE + encode_key(key[:1]) + b"\0" + key[1]


@given(
    st.lists(st.dictionaries(KEYS, st.binary(max_size=200) | st.just(bytes(20_000)), max_size=60), max_size=3),
    st.integers(1, 8000) | st.just(1 << 20),
)
def test_buckets_have_all_entries_in_order_of_new_keys(of_workers: list[Entries], buffer_bytes: int) -> None:
    """Whichever worker has divided an entry, and however often buckets were written and sorted in parts."""
    entries = {key: value for written in of_workers for key, value in written.items()}
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name, f"worker-{number}") for number in range(len(of_workers))]
        left = dict(entries)
        for folder, written in zip(folders, of_workers, strict=True):
            writer = BucketWriter(folder, Rehash(TYPES, ["seen"], GROUPS), STARTS, buffer_bytes)
            # Each key once, as in state.
            old = sorted((_stored(key, 100), left.pop(key)) for key in written if key in left)
            for some in (old[:20], old[20:30], old[30:]):
                writer.add(blocks_of(some))
            writer.flush()
        scratch = Path(name, "scratch")
        scratch.mkdir()
        found = [
            entry
            for bucket in STARTS
            for block in read_sorted([bucket_file(folder, bucket) for folder in folders], scratch, buffer_bytes)
            for entry in entries_of([block])
        ]
        assert found == sorted((_stored(key, GROUPS), value) for key, value in entries.items())
        assert not list(scratch.iterdir())


def test_sorted_runs_of_several_parts_are_merged_in_order_of_keys(tmp_path: Path) -> None:
    """One run ends within the keys of the other one."""
    folders, keys = [tmp_path / "0", tmp_path / "1"], []
    for worker, numbers in enumerate((range(200), range(100, 300))):
        writer = BucketWriter(folders[worker], Rehash(TYPES, ["seen"], GROUPS), [0])
        names = [("key", number.to_bytes(2) + bytes([worker])) for number in numbers]
        writer.add(blocks_of((_stored(name, 100), bytes(20_000)) for name in names))
        writer.flush()
        keys += [_stored(name, GROUPS) for name in names]
    blocks = read_sorted([bucket_file(folder, 0) for folder in folders], tmp_path, buffer_bytes=3 << 20)
    assert [key for block in blocks for key in block.keys] == sorted(keys)
