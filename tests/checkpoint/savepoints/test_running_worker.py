"""Worker processes of savepoints: several tasks, errors, crashes, and the end of either process."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from stateflow.checkpoint.savepoints.canonical.worker import LENGTH, SortBuckets, WorkerTask, WriteShare
from stateflow.checkpoint.savepoints.canonical.worker_pool import (
    WORKER_PROGRAM,
    LocalWorkers,
    RunningWorker,
    Volume,
    WaitingTasks,
    encode_task,
    error_of_end,
)
from stateflow.checkpoint.savepoints.canonical.writer import Destination, LocalCopies, Shard
from stateflow.errors import CorruptFile, InternalError, MissingFile
from stateflow.private_files import PREFIX
from stateflow.state.backends import canonical_file
from stateflow.state.backends.canonical_file import CanonicalHeader
from stateflow.state.backends.entry_stream import entries_of
from stateflow.state.handles import FileHandle, StateFile, SubtaskState
from stateflow.storage import PosixStorage
from stateflow.types.key_groups import KeyGroupRange
from tests.support.errors import raises
from tests.support.stores import RocksStoreFixture, base_of
from tests.support.table_files import ATTACKS, ForgedTable, restart_outside

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


class _Counting(PosixStorage):
    """Records what is fetched."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.fetched: list[str] = []

    def fetch(self, key: str, target: Path, limit: int | None = None) -> None:
        self.fetched.append(key)
        super().fetch(key, target, limit)


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


def test_one_process_does_several_tasks_and_continues_after_an_error(root: _Root, worker: RunningWorker) -> None:
    missing = root.task(1)
    root.storage.delete([file.handle.key for file in _state_of(missing).files])
    results = [worker.run(task) for task in (root.task(2), missing, root.task(3))]
    assert [bool(result.failure) for result in results] == [False, True, False]
    with raises(MissingFile):
        results[1].stored()
    for number, result in ((2, results[0]), (3, results[2])):
        (file,) = result.stored()
        assert {key[2:] for key in root.stored(file)} == {b"%05d" % number}
    assert psutil.pid_exists(worker.pid)


def test_a_worker_and_its_temporary_files_are_gone_after_the_with_statement(
    root: _Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(KeyboardInterrupt), RunningWorker() as worker:
        worker.run(root.task(1))
        raise KeyboardInterrupt
    assert not psutil.pid_exists(worker.pid)
    assert not list(tmp_path.glob(f"{PREFIX}*"))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_files_are_in_the_order_of_the_work_with_each_number_of_workers(root: _Root, count: int) -> None:
    tasks = [root.task(number) for number in range(5)]
    workers = LocalWorkers()
    workers.count, workers.worth_a_worker = count, 0
    files = workers.do([task.work for task in tasks], Volume(root.storage, root.storage, 1))
    assert [{key[2:] for key in root.stored(file)} for file in files] == [{b"%05d" % n} for n in range(5)]


def test_a_worker_takes_neighbours_then_the_last_task_of_the_longest_part(root: _Root) -> None:
    tasks = [root.task(1)] * 7
    waiting = WaitingTasks(tasks, 3)
    assert waiting.workers == 3
    taken = [waiting.take(worker) for worker in (0, 0, 0, 1, 0, 2, 1, 0)]
    assert [found and found[0] for found in taken] == [0, 1, 6, 2, 5, 4, 3, None]


def test_an_error_of_a_task_is_raised_and_all_workers_end(root: _Root) -> None:
    tasks = [root.task(number) for number in range(3)]
    root.storage.delete([file.handle.key for file in _state_of(tasks[1]).files])
    workers = LocalWorkers()
    workers.count = 2
    with raises(MissingFile):
        workers.run(tasks)
    assert not [child for child in psutil.Process().children() if _is_worker(child)]


def _is_worker(process: psutil.Process) -> bool:
    try:
        return WORKER_PROGRAM[-1] in process.cmdline()
    except psutil.Error:
        return False


def _changed(change: str) -> tuple[str, ...]:
    return sys.executable, "-c", CHANGED.format(change=change)


def test_shards_of_a_subtask_share_local_copies_which_the_next_subtask_replaces(
    root: _Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    storage = _Counting(root.path)
    states = [_state_of(root.task(number)) for number in range(2)]
    keys = [file.handle.key for state in states for file in state.files]
    with LocalCopies() as copies:
        for number in (0, 0, 1, 0):
            for groups in (KeyGroupRange(0, 63), KeyGroupRange(64, 127)):
                read = {key for key, _ in entries_of(copies.entries(_shard(states[number], groups), storage))}
                assert read == {key for key in entries(number) if groups.first <= key[1] <= groups.last}
            assert len(list(tmp_path.glob(f"{PREFIX}*"))) == 1
    assert storage.fetched == [keys[0], keys[1], keys[0]]
    assert not list(tmp_path.glob(f"{PREFIX}*"))


# -- the end of a worker -----------------------------------------------------------------------------------------------


def test_a_killed_worker_is_an_internal_error(root: _Root, worker: RunningWorker) -> None:
    task = root.task(1)
    os.kill(worker.pid, signal.SIGKILL)
    for _ in range(2):
        with raises(InternalError, exit_code=-signal.SIGKILL):
            worker.run(task)


def test_a_store_that_crashes_a_worker_is_a_corrupt_file_and_no_retry_helps(root: _Root) -> None:
    reason = "the process that read it ended with SIGSEGV"
    with (
        RunningWorker(_changed(CRASHING)) as worker,
        raises(CorruptFile, files=["data/restart_outside"], reason=reason) as caught,
    ):
        worker.run(root.forged(restart_outside))
    assert not caught.value.retryable


def test_a_worker_checks_the_structure_of_a_store(root: _Root, worker: RunningWorker) -> None:
    """Without this check, RocksDB skips the rest of a block after some of these changes, without an error."""
    for attack in ATTACKS:
        result = worker.run(root.forged(attack))
        with raises(CorruptFile, file=f"data/{attack.__name__}"):
            result.stored()
    assert worker.run(root.task(1)).stored()


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGXCPU])
def test_only_a_crash_while_stored_state_is_read_is_a_corrupt_file(root: _Root, number: signal.Signals) -> None:
    task = root.task(1)
    assert type(error_of_end(task, -number)) is CorruptFile
    sorting = replace(task, work=SortBuckets(subtasks=[], folders=[], to=TO))
    for found in (error_of_end(sorting, -number), error_of_end(task, -signal.SIGKILL), error_of_end(task, 1)):
        assert type(found) is InternalError


def test_a_worker_has_limits_of_memory_and_cpu_time(root: _Root, worker: RunningWorker) -> None:
    worker.run(root.task(1)).stored()
    process = psutil.Process(worker.pid)
    _, memory = process.rlimit(psutil.RLIMIT_DATA)
    assert 2 << 30 <= memory < 3 << 30
    seconds, _ = process.rlimit(psutil.RLIMIT_CPU)
    assert 60 <= seconds < 120


def test_a_task_that_takes_too_long_ends_a_worker(root: _Root) -> None:
    change = "worker._SECONDS = 1; backend.RocksDBBackend.read_range = lambda *_: exec('" + BLOCKED + "')"
    with RunningWorker(_changed(change)) as worker, raises(InternalError, exit_code=-signal.SIGALRM):
        worker.run(root.task(1))


# -- the end of its parent ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_worker_ends_during_a_task_when_its_standard_input_does(root: _Root, tasks: int) -> None:
    """Also if the next task is in its standard input already."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        # A server that never answers.
        source = f"webhdfs://127.0.0.1:{server.getsockname()[1]}/job"
        task = replace(root.task(1), source=source, target=source)
        with _started() as child:
            assert child.stdin is not None
            child.stdin.write(encode_task(task) * tasks)
            child.stdin.flush()
            connection, _ = server.accept()
            with connection:
                assert connection.recv(1) and child.poll() is None
                child.stdin.close()
                assert child.wait(30) == 1


@pytest.mark.parametrize("change", ["", BLOCKED.join(["worker.isolate = lambda _: exec('", "')"])])
def test_a_worker_ends_with_its_parent_while_another_child_has_the_pipe(change: str) -> None:
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


def test_an_idle_worker_ends_when_its_standard_input_does(root: _Root) -> None:
    with _started() as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(encode_task(root.task(1)))
        child.stdin.flush()
        assert len(child.stdout.read(LENGTH.size)) == LENGTH.size
        child.stdin.close()
        child.stdout.read()
        # Two threads notice, and either may be the first.
        assert child.wait(30) in (0, 1)
