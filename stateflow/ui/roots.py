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
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import IntEnum
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
_NEVER, _FOREVER = float("-inf"), float("inf")


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
        hanging: calls beyond their deadline, after which no others are begun. A third of it is the bound for further
            calls of job roots that do not answer, two thirds for first calls of job roots: one that has answered goes
            on, however many others do not.
        longest_pause: time between two calls of a job root that does not answer; at first, it is the deadline.
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
    hanging: int = 192
    longest_pause: timedelta = timedelta(minutes=5)
    deadline: timedelta = timedelta(seconds=5)
    fresh: timedelta = timedelta(seconds=1)
    patience: timedelta = timedelta(milliseconds=50)
    list_patience: timedelta = timedelta(milliseconds=250)
    old: timedelta = timedelta(seconds=10)
    results: int = 64
    roots: int = 5000


class ThreadCall:
    """A call in a thread of its own, or one that waits for a thread.

    Args:
        run: the call, which raises nothing and returns whether the job root has answered.
        root: address of the job root that it reads.
        asked: when it was asked for.

    Attributes:
        began: when its thread began it; None while it waits.
        hangs: whether it has not ended at its deadline.
    """

    def __init__(self, run: Callable[[], bool], root: str, asked: float) -> None:
        self.run = run
        self.root = root
        self.asked = asked
        self.began: float | None = None
        self.hangs = False


class _Trust(IntEnum):
    """State of a job root's storage. The value is how many thirds of `RootLimits.hanging` may hang before its call."""

    FAILS = 1
    """A call hangs, and none has returned since."""
    UNKNOWN = 2
    ANSWERS = 3


class _RootCalls:
    """The calls of one job root."""

    def __init__(self) -> None:
        # As a set that keeps the order.
        self.waiting: dict[ThreadCall, None] = {}
        self.running = 0
        self.hanging = 0
        self.trust = _Trust.UNKNOWN
        self.pause = 0.0
        self.not_before = _NEVER


class Threads:
    """Runs blocking calls in threads that end with the process; one that hangs does not occupy a place.

    A job root that has never answered has one call at a time. One that does not answer any more is asked by one further
    call after a pause, which gets longer each time, so that many of them leave threads to the others.

    Args:
        limits: number of threads and of calls, and deadline.
        clock: measures how long a call takes.
    """

    def __init__(self, limits: RootLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()
        self._roots: dict[str, _RootCalls] = {}
        # The job roots that have waiting calls, in the order of their turns.
        self._turns: OrderedDict[str, None] = OrderedDict()
        # When each call began that does not hang, the oldest first.
        self._working: dict[ThreadCall, float] = {}
        self._hanging = 0
        # None of the waiting calls may begin before.
        self._blocked_until = _NEVER

    def submit(self, run: Callable[[], bool], root: str) -> ThreadCall:
        """Begins a call as soon as there is a place.

        Args:
            run: the call, which raises nothing and returns whether the job root has answered.
            root: address of the job root that it reads.

        Raises NotYetAvailable if too many calls of the job root wait.
        """
        now = self._clock.monotonic()
        call = ThreadCall(run, root, now)
        with self._lock:
            calls = self._roots.setdefault(root, _RootCalls())
            if len(calls.waiting) >= self._limits.waiting:
                raise NotYetAvailable(
                    "too many calls wait for the job root", hint="ask again later", waiting=self._limits.waiting
                )
            calls.waiting[call] = None
            self._turns.setdefault(root)
            self._blocked_until = min(self._blocked_until, self._begins_at(calls))
        self.sweep()
        return call

    def drop(self, call: ThreadCall) -> bool:
        """Gives up a call that has not begun; returns False for one that has."""
        with self._lock:
            calls = self._roots.get(call.root)
            if calls is None or call not in calls.waiting:
                return False
            self._take(call, calls)
            self._forget(call.root, calls)
            return True

    def sweep(self) -> None:
        """Gives the places of calls that hang to those that wait."""
        now = self._clock.monotonic()
        with self._lock:
            self._find_hanging(now)
            while len(self._working) < self._limits.threads and (call := self._next(now)) is not None:
                try:
                    threading.Thread(target=self._work, args=(call,), name="stateflow-ui", daemon=True).start()
                except RuntimeError:
                    # The process has as many threads as it may have: it waits for the next sweep.
                    break
                calls = self._roots[call.root]
                self._take(call, calls)
                calls.running += 1
                call.began = self._working[call] = now

    def _find_hanging(self, now: float) -> None:
        deadline, longest = self._limits.deadline.total_seconds(), self._limits.longest_pause.total_seconds()
        while self._working and now - self._working[oldest := next(iter(self._working))] >= deadline:
            del self._working[oldest]
            oldest.hangs = True
            self._hanging += 1
            calls = self._roots[oldest.root]
            calls.hanging += 1
            calls.trust = _Trust.FAILS
            if now >= calls.not_before:
                # Not for each of several calls that hang at the same time.
                calls.pause = min(max(2 * calls.pause, deadline), longest)
                calls.not_before = now + calls.pause
            # A further call may find out whether the job root answers again, although none has ended.
            self._blocked_until = _NEVER

    def _next(self, now: float) -> ThreadCall | None:
        """Returns the oldest waiting call of the first job root that may have a further thread."""
        if now < self._blocked_until:
            return None
        times = [_FOREVER]
        for root in self._turns:
            calls = self._roots[root]
            at = self._begins_at(calls)
            if at <= now:
                return next(iter(calls.waiting))
            times.append(at)
        # So that those that cannot begin are not looked through again for each call that is submitted.
        self._blocked_until = min(times)
        return None

    def _begins_at(self, calls: _RootCalls) -> float:
        """Returns when a further call of a job root may begin; never before another call has ended."""
        if calls.trust is _Trust.ANSWERS:
            is_full = calls.running >= self._limits.threads_of_root
        else:
            # Only one call finds out whether it answers, besides one that hangs already.
            is_full = calls.running > calls.hanging or calls.hanging > 1
        if is_full or len(_Trust) * self._hanging >= calls.trust * self._limits.hanging:
            return _FOREVER
        return calls.not_before if calls.trust is _Trust.FAILS else _NEVER

    def _take(self, call: ThreadCall, calls: _RootCalls) -> None:
        """Removes a waiting call; another job root is then next."""
        del calls.waiting[call]
        if calls.waiting:
            self._turns.move_to_end(call.root)
        else:
            del self._turns[call.root]

    def _work(self, call: ThreadCall) -> None:
        has_answered = False
        try:
            has_answered = call.run()
        finally:
            with self._lock:
                self._end(call, has_answered)
            self.sweep()

    def _end(self, call: ThreadCall, has_answered: bool) -> None:
        calls = self._roots[call.root]
        calls.running -= 1
        if call.hangs:
            calls.hanging -= 1
            self._hanging -= 1
        else:
            del self._working[call]
        if has_answered:
            calls.trust, calls.pause, calls.not_before = _Trust.ANSWERS, 0.0, _NEVER
        elif call.hangs:
            calls.not_before = self._clock.monotonic() + calls.pause
        self._blocked_until = _NEVER
        self._forget(call.root, calls)

    def _forget(self, root: str, calls: _RootCalls) -> None:
        if not calls.waiting and not calls.running and len(self._roots) > self._limits.roots:
            del self._roots[root]


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
            # A call that hangs gives its place to others, also without a further request.
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

    def forget(self) -> None:
        """Gives up a call that has not begun and has no reader that waits, because the result is not kept."""
        with self._lock:
            if self._running is not None and not self._waiters and self._threads.drop(self._running):
                problem = NotYetAvailable(f"{self._source} has not been asked", hint="ask again later")
                self._end(replace(self._reading, problem=problem))

    def _run(self) -> bool:
        before = self._reading
        try:
            reading = Reading(self._call(), self._clock.now().isoformat(timespec="milliseconds"), None)
        except StateflowError as e:
            reading = replace(before, problem=e)
        except Exception as e:
            log.exception("unexpected error while reading a job root")
            reading = replace(before, problem=InternalError(f"{type(e).__name__}: {e}", hint="report this"))
        with self._lock:
            self._end(reading)
        # Also the error that there is no job, or that it is damaged, is an answer of the storage.
        return not isinstance(reading.problem, StorageError)

    def _end(self, reading: Reading[T]) -> None:
        """Ends the call, and wakes those who wait for it."""
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
        # Of the reader's memory, as it was counted last.
        self.counted = 0
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


_LONGEST_SEARCH = 3
"""How many deadlines an answer waits until the records that it needs were read."""


class Roots:
    """The snapshots of job roots, bounded in memory: those that were not read for longest are shortened.

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
        # Those that can be shortened.
        self._long: OrderedDict[tuple[str, str], _Followed] = OrderedDict()
        self._counted = 0
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
        self._bound_memory((job.id, job.job_root), followed)
        return followed.now()

    async def read_all(self, jobs: Sequence[CatalogJob], extent: Extent) -> list[Reading[Snapshot]]:
        """Returns several job roots; one that does not answer soon as it was known before."""
        return await asyncio.gather(*(self.read(job, self.limits.list_patience, extent=extent) for job in jobs))

    async def read_position(
        self, job: CatalogJob, has: Callable[[Snapshot], bool] = lambda snapshot: True
    ) -> tuple[Reading[Snapshot], Snapshot, Position]:
        """Returns a job root whose newest log entry is known.

        Args:
            job: the job root.
            has: returns whether a snapshot has the records that are wanted; while it has not, older ones are read.

        Raises:
            StateflowError: the error of reading the job root.
            NotYetAvailable: no run has begun, or the records may be among those that were not read in time.
        """
        for _ in range(_LONGEST_SEARCH):
            reading = await self.read(job)
            snapshot = reading.value
            if snapshot is None or snapshot.position is None:
                raise reading.problem or NotYetAvailable("the job has no checkpoint that could be read yet", job=job.id)
            if snapshot.complete or has(snapshot):
                return reading, snapshot, snapshot.position
            if reading.problem is not None:
                raise reading.problem
        raise NotYetAvailable(
            "older records of the history are being read", hint="the page tries again by itself", job=job.id
        )

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
            if followed.extent is not Extent.NEWEST:
                self._long.setdefault(key, followed)
            if extent is Extent.WHOLE:
                # A list of all jobs touches each of them, and says nothing about what will be needed again.
                self._followed.move_to_end(key)
                self._long.move_to_end(key)
            while len(self._followed) > self.limits.roots:
                oldest, forgotten = self._followed.popitem(last=False)
                self._long.pop(oldest, None)
                self._counted -= forgotten.counted
                # Otherwise the calls of all that were forgotten would wait before other calls.
                forgotten.looks.forget()
            return followed

    def _bound_memory(self, key: tuple[str, str], current: _Followed) -> None:
        with self._lock:
            if self._followed.get(key) is current:
                taken = current.reader.memory
                self._counted += taken - current.counted
                current.counted = taken
            if self._counted <= self.limits.memory:
                return
            found = [(each_key, each) for each_key, each in self._long.items() if each is not current]
        for extent in (Extent.ACTIONS, Extent.NEWEST):
            for each_key, each in found:
                if self._counted <= self.limits.memory:
                    return
                if each.extent > extent:
                    self._shorten(each_key, each, extent)

    def _shorten(self, key: tuple[str, str], followed: _Followed, extent: Extent) -> None:
        if followed.reader.shrink(extent) is None:
            return
        with self._lock:
            followed.extent = extent
            if self._followed.get(key) is not followed:
                return
            taken = followed.reader.memory
            self._counted += taken - followed.counted
            followed.counted = taken
            if extent is Extent.NEWEST:
                self._long.pop(key, None)


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
                _, forgotten = self._cells.popitem(last=False)
                forgotten.forget()
        return await cell.read()
