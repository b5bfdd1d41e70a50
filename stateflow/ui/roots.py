"""The job roots that the pages show: followed by threads that are bounded, each with a deadline of its own.

A storage may hang for minutes, or for ever. A call that has not returned at its deadline no longer counts among the
threads that work, so that it delays no other job root, and its job root gets only a few others. A page waits for a look
only as long as its patience, and otherwise shows the snapshot before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Generic, Protocol, TypeVar

from stateflow.checkpoint.log.documents import EntryRef, Manifest
from stateflow.clock import Clock, SystemClock, to_milliseconds
from stateflow.errors import InternalError, NotYetAvailable, StateflowError, StorageError
from stateflow.outputs import ErrorReport
from stateflow.storage import Storage
from stateflow.ui.snapshots import Extent, Position, RootReader, Snapshot

log = logging.getLogger(__name__)

T = TypeVar("T")
V = TypeVar("V", covariant=True)
_NEVER = float("-inf")


@dataclass(frozen=True)
class CatalogJob:
    """A job root that the pages may show.

    Attributes:
        id: its id in addresses of the pages.
        job_root: its URI.
        open_storage: opens it.
    """

    id: str
    job_root: str
    open_storage: Callable[[], Storage] = field(repr=False)


@dataclass(frozen=True)
class RootSearch:
    """The newest search for job roots in a folder or below a prefix.

    Attributes:
        location: path or URI.
        job_roots_count: number of job roots that it found.
        truncated: whether it ended at a limit, so that there may be others.
        problem: why it failed; None if it did not.
    """

    location: str
    job_roots_count: int
    truncated: bool
    problem: ErrorReport | None


@dataclass(frozen=True)
class Orchestration:
    """The state of a job in the orchestrator that runs it. None means that it is not known.

    Attributes:
        dag_ids: the DAGs that work on it, ordered.
        awaits_approval: whether a person has to approve something that is to be done to the job.
        late: whether a deadline of the job has passed without a run that succeeded since.
        next_run_at: when the orchestrator begins the next run; empty if none is scheduled, and if it is not known.
    """

    dag_ids: tuple[str, ...] = ()
    awaits_approval: bool | None = None
    late: bool | None = None
    next_run_at: str = ""


class Catalog(Protocol):
    """The job roots that the pages show; may be asked by any thread, often, and answers without waiting."""

    def jobs(self) -> Mapping[str, CatalogJob]:
        """Returns the job roots by id."""

    def searches(self) -> Sequence[RootSearch]:
        """Returns the searches for job roots; none for a catalog that is a list."""

    def orchestration_of(self, id: str) -> Orchestration:
        """Returns what the orchestrator knows of a job; nothing for a job that it does not run."""


@dataclass(frozen=True)
class RootLimits:
    """Limits of following job roots.

    Attributes:
        memory: bytes of all records in memory, as an estimate.
        threads: calls that work concurrently.
        threads_of_root: calls of one job root that have begun and not ended; its others wait.
        waiting: calls of one job root that wait for a thread; further ones are refused.
        hanging: calls beyond their deadline, after which no others are begun.
        deadline: time after which a call is said to hang, from its start.
        fresh: age up to which a snapshot is shown without a look at the storage.
        patience: how long a page waits for a look if there is a snapshot that is at most `old`.
        list_patience: how long a list of several jobs waits for each of them, all together.
        old: age of a snapshot for which a page waits until the deadline.
        results: results of other calls that are kept, such as descriptions of checkpoints.
        roots: job roots that are followed; beyond, the one that was first seen or read whole longest ago is forgotten.
    """

    memory: int = 256 << 20
    threads: int = 8
    threads_of_root: int = 4
    waiting: int = 64
    hanging: int = 64
    deadline: timedelta = timedelta(seconds=5)
    fresh: timedelta = timedelta(seconds=1)
    patience: timedelta = timedelta(milliseconds=50)
    list_patience: timedelta = timedelta(milliseconds=250)
    old: timedelta = timedelta(seconds=10)
    results: int = 64
    roots: int = 1000


class ThreadCall:
    """A call in a thread of its own, or one that waits for a thread.

    Args:
        run: the call, which raises nothing.
        root: address of the job root that it reads.
        asked: when it was asked for.

    Attributes:
        began: when its thread began it; None while it waits.
        hangs: whether it has not ended at its deadline.
    """

    def __init__(self, run: Callable[[], None], root: str, asked: float) -> None:
        self.run = run
        self.root = root
        self.asked = asked
        self.began: float | None = None
        self.hangs = False


class Threads:
    """Runs blocking calls in threads that end with the process; one that hangs does not occupy a place.

    Args:
        limits: number of threads and of calls, and deadline.
        clock: measures how long a call takes.
    """

    def __init__(self, limits: RootLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: list[ThreadCall] = []
        self._running: list[ThreadCall] = []

    def submit(self, run: Callable[[], None], root: str) -> ThreadCall:
        """Begins a call as soon as there is a place.

        Args:
            run: the call, which raises nothing.
            root: address of the job root that it reads.

        Raises NotYetAvailable if too many calls of the job root wait.
        """
        call = ThreadCall(run, root, self._clock.monotonic())
        with self._lock:
            if sum(each.root == root for each in self._waiting) >= self._limits.waiting:
                raise NotYetAvailable(
                    "too many calls wait for the job root", hint="ask again later", waiting=self._limits.waiting
                )
            self._waiting.append(call)
        self.sweep()
        return call

    def sweep(self) -> None:
        """Gives the places of calls that hang to those that wait."""
        now = self._clock.monotonic()
        deadline = self._limits.deadline.total_seconds()
        with self._lock:
            for call in self._running:
                call.hangs = call.hangs or (call.began is not None and now - call.began >= deadline)
            hanging = sum(call.hangs for call in self._running)
            places = self._limits.threads - (len(self._running) - hanging)
            while places > 0 and hanging < self._limits.hanging and (next_call := self._next()) is not None:
                try:
                    self._start(next_call, now)
                except RuntimeError:
                    # The process has as many threads as it may have: it waits for the next sweep.
                    break
                places -= 1

    def _next(self) -> ThreadCall | None:
        """Returns the call that has waited longest, of a job root that may have a further thread."""
        of_root = Counter(each.root for each in self._running)
        return next((each for each in self._waiting if of_root[each.root] < self._limits.threads_of_root), None)

    def _start(self, call: ThreadCall, now: float) -> None:
        threading.Thread(target=self._work, args=(call,), name="stateflow-ui", daemon=True).start()
        call.began = now
        self._waiting.remove(call)
        self._running.append(call)

    def _work(self, call: ThreadCall) -> None:
        try:
            call.run()
        finally:
            with self._lock:
                self._running.remove(call)
            self.sweep()


@dataclass(frozen=True)
class Reading(Generic[V]):
    """A value that a call has returned, and whether it is current.

    Attributes:
        value: the newest one; None before the first.
        read_at: when it was read, ISO 8601; empty before the first.
        problem: why it is not current; None if it is, as far as is known.
    """

    value: V | None
    read_at: str
    problem: StateflowError | None


class Cell(Generic[T]):
    """The newest result of a call, which is repeated when a reader asks for it and it is no longer fresh.

    Args:
        threads: run the call.
        call: the blocking call.
        clock: measures ages.
        limits: deadline and patience.
        fresh: age up to which the result is returned without another call.
        source: what the call reads, for the error of one that hangs.
        root: address of the job root that it reads; empty for something else.
    """

    def __init__(
        self,
        threads: Threads,
        call: Callable[[], T],
        clock: Clock,
        *,
        limits: RootLimits,
        fresh: timedelta,
        source: str = "the storage of the job root",
        root: str = "",
    ) -> None:
        self._source = source
        self._root = root
        self._threads = threads
        self._call = call
        self._clock = clock
        self._limits = limits
        self._fresh = fresh.total_seconds()
        self._lock = threading.Lock()
        self._running: ThreadCall | None = None
        self._waiters: set[asyncio.Future[None]] = set()
        self._ended = _NEVER
        self._reading: Reading[T] = Reading(None, "", None)

    async def read(self, patience: timedelta | None = None, *, must_call: bool = False) -> Reading[T]:
        """Returns the newest result, after waiting for the next one for a time.

        Args:
            patience: how long to wait if the newest result is old; None for the deadline.
            must_call: whether to repeat the call although the result is fresh.
        """
        self._threads.sweep()
        running = self._begin(must_call)
        if running is not None:
            longest = self._limits.deadline if patience is None else patience
            wait = min(longest, self._limits.patience) if self._is_recent() else longest
            await self._wait(running, wait)
            # The place of one that hangs is for others, also if nobody asks again.
            self._threads.sweep()
        return self.now()

    async def _wait(self, running: ThreadCall, longest: timedelta) -> None:
        """Waits until the call has ended, for a time."""
        waiter = asyncio.get_running_loop().create_future()
        with self._lock:
            if self._running is not running:
                return
            self._waiters.add(waiter)
        try:
            await asyncio.wait([waiter], timeout=longest.total_seconds())
        finally:
            with self._lock:
                self._waiters.discard(waiter)

    def now(self) -> Reading[T]:
        """Returns the newest result without waiting."""
        found = self._reading
        problem = self._delay() if found.problem is None else None
        return Reading(found.value, found.read_at, problem) if problem else found

    def _is_recent(self) -> bool:
        """Returns whether the newest result is good enough for now, or the next one will probably not come soon."""
        age = self._clock.monotonic() - self._ended
        known = self._reading.problem is not None or age < self._limits.old.total_seconds()
        return self._delay() is not None or (known and self._ended != _NEVER)

    def _delay(self) -> StateflowError | None:
        """Returns why the call has not ended in time; None if it has, or may still do so."""
        call, seconds = self._running, self._limits.deadline.total_seconds()
        if call is None or self._clock.monotonic() - (call.asked if call.began is None else call.began) < seconds:
            return None
        if call.began is None:
            hint = "others do not answer; the page tries again by itself"
            message = f"{self._source} has not been asked yet"
            return NotYetAvailable(message, hint=hint, timeout_ms=to_milliseconds(seconds))
        hint = "check that this process can reach it; the page tries again by itself"
        return StorageError(f"{self._source} does not answer", hint=hint, timeout_ms=to_milliseconds(seconds))

    def _begin(self, must_call: bool) -> ThreadCall | None:
        now = self._clock.monotonic()
        with self._lock:
            fresh = self._fresh if self._reading.problem is None else self._limits.fresh.total_seconds()
            if self._running is not None or (now - self._ended < fresh and not must_call):
                return self._running
            try:
                self._running = self._threads.submit(self._run, self._root)
            except NotYetAvailable as e:
                self._reading, self._ended = replace(self._reading, problem=e), now
            return self._running

    def _run(self) -> None:
        before = self._reading
        try:
            reading = Reading(self._call(), self._clock.now().isoformat(timespec="milliseconds"), None)
        except StateflowError as e:
            reading = replace(before, problem=e)
        except Exception as e:
            log.exception("unexpected error while reading a job root")
            reading = replace(before, problem=InternalError(f"{type(e).__name__}: {e}", hint="report this"))
        with self._lock:
            self._reading = reading
            self._running, self._ended = None, self._clock.monotonic()
            for waiter in self._waiters:
                # The loop of a server that is being stopped may have ended.
                with contextlib.suppress(RuntimeError):
                    waiter.get_loop().call_soon_threadsafe(_settle, waiter)


def _settle(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class _Followed:
    """A job root that is followed."""

    def __init__(self, job: CatalogJob, threads: Threads, clock: Clock, limits: RootLimits) -> None:
        self.reader = RootReader(job.open_storage, clock)
        self.extent = Extent.NEWEST
        # The snapshot is the reader's alone, so that its memory can be freed.
        self.looks: Cell[None] = Cell(threads, self._look, clock, limits=limits, fresh=limits.fresh, root=job.job_root)

    def _look(self) -> None:
        self.reader.look(self.extent)

    def lacks(self, extent: Extent) -> bool:
        """Returns whether a further look would read older records of an extent."""
        read = self.reader.snapshot.extent if self.reader.snapshot else Extent.NEWEST
        return read < extent and self.looks.now().problem is None

    def now(self) -> Reading[Snapshot]:
        """Returns the newest snapshot, also the first part of one that is still being read."""
        found = self.looks.now()
        return Reading(self.reader.snapshot, found.read_at, found.problem)


class Roots:
    """The snapshots of job roots, bounded in memory: those that nobody looked at for longest are shortened.

    Args:
        limits: of memory, threads and time.
        clock: the clock.
    """

    def __init__(self, limits: RootLimits = RootLimits(), clock: Clock | None = None) -> None:
        self.limits = limits
        self.clock = clock or SystemClock()
        self.threads = Threads(limits, self.clock)
        self._lock = threading.Lock()
        self._followed: OrderedDict[tuple[str, str], _Followed] = OrderedDict()
        self._manifests: Calls[Manifest] = Calls(self, None)

    async def read(
        self, job: CatalogJob, patience: timedelta | None = None, *, extent: Extent = Extent.WHOLE
    ) -> Reading[Snapshot]:
        """Returns the newest snapshot of a job root.

        Args:
            job: the job root.
            patience: how long to wait for it; None as `Cell.read`.
            extent: how much of its history is wanted; after the patience, the snapshot may be without older records.
        """
        ends = self.clock.monotonic() + (self.limits.deadline if patience is None else patience).total_seconds()
        while True:
            # Again each time: another job root may need the memory meanwhile.
            followed = self._follow(job, extent)
            lacks = followed.lacks(extent)
            await followed.looks.read(patience, must_call=lacks)
            # A look reads a part of a long history, so that it ends in time.
            if not lacks or not followed.lacks(extent) or self.clock.monotonic() >= ends:
                break
        self._bound_memory(followed)
        return followed.now()

    async def read_all(self, jobs: Sequence[CatalogJob], extent: Extent) -> list[Reading[Snapshot]]:
        """Returns several job roots; one that does not answer soon as it was known before."""
        return await asyncio.gather(*(self.read(job, self.limits.list_patience, extent=extent) for job in jobs))

    async def read_position(self, job: CatalogJob) -> tuple[Reading[Snapshot], Snapshot, Position]:
        """Returns a job root whose newest log entry is known. Raises the error of reading it, or NotYetAvailable."""
        reading = await self.read(job)
        snapshot = reading.value
        if snapshot is None or snapshot.position is None:
            raise reading.problem or NotYetAvailable("the job has no checkpoint that could be read yet", job=job.id)
        return reading, snapshot, snapshot.position

    async def read_manifest(self, job: CatalogJob, snapshot: Snapshot, ref: EntryRef) -> Reading[Manifest]:
        """Returns the manifest of a checkpoint that the job keeps."""
        handle, root = ref.manifest, snapshot.root
        key = (job.job_root, root.job.job_uuid, handle.sha256)
        return await self._manifests.read(key, lambda: root.checkpoints.read_manifest(handle))

    def known(self, job: CatalogJob) -> Snapshot | None:
        """Returns the newest snapshot of a job root, without waiting; None if it was not read yet."""
        with self._lock:
            found = self._followed.get((job.id, job.job_root))
        return found.reader.snapshot if found else None

    def _follow(self, job: CatalogJob, extent: Extent) -> _Followed:
        key = job.id, job.job_root
        with self._lock:
            followed = self._followed.get(key)
            if followed is None:
                followed = self._followed[key] = _Followed(job, self.threads, self.clock, self.limits)
            followed.extent = max(followed.extent, extent)
            if extent is Extent.WHOLE:
                # A list of all jobs touches each of them, and says nothing about what will be needed again.
                self._followed.move_to_end(key)
            while len(self._followed) > self.limits.roots:
                self._followed.popitem(last=False)
            return followed

    def _bound_memory(self, current: _Followed) -> None:
        with self._lock:
            found = list(self._followed.values())
        taken = sum(each.reader.memory for each in found)
        for extent in (Extent.ACTIONS, Extent.NEWEST):
            for each in found:
                if taken <= self.limits.memory:
                    return
                if each is current or each.extent <= extent:
                    continue
                freed = each.reader.shrink(extent)
                if freed is not None:
                    each.extent = extent
                    taken -= freed


class Calls(Generic[T]):
    """Newest results of one kind of blocking call about job roots, such as reading their savepoints.

    Args:
        roots: has the threads and limits.
        fresh: age up to which a result is returned again; None for ever.
        results: number of results that are kept; None for `RootLimits.results`.
    """

    def __init__(self, roots: Roots, fresh: timedelta | None, results: int | None = None) -> None:
        self._roots = roots
        self._results = roots.limits.results if results is None else results
        self._fresh = timedelta.max if fresh is None else fresh
        self._lock = threading.Lock()
        self._cells: OrderedDict[tuple[str, ...], Cell[T]] = OrderedDict()

    async def read(self, key: tuple[str, ...], call: Callable[[], T]) -> Reading[T]:
        """Returns the newest result of the call with this key, which begins with the address of the job root."""
        roots = self._roots
        with self._lock:
            cell = self._cells.get(key)
            if cell is None:
                limits, fresh = roots.limits, self._fresh
                cell = Cell(roots.threads, call, roots.clock, limits=limits, fresh=fresh, root=key[0])
                self._cells[key] = cell
            self._cells.move_to_end(key)
            while len(self._cells) > self._results:
                self._cells.popitem(last=False)
        return await cell.read()
