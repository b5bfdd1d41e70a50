"""Renews the launch that a task follows: starts its successor, which takes over from it, and decides which one counts.

All is decided from the launch folders, so that the next try of the task decides as the one before it would have::

    launch-<n>/predecessor    name of the folder of the launch that this one is to take over from
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO, Self

from stateflow_airflow import graceful_end
from stateflow_airflow.failures import config_failure
from stateflow_airflow.launch import Launch, Launcher, read_record
from stateflow_airflow.run_result import read_result

log = logging.getLogger("airflow.task")


PREDECESSOR = "predecessor"
"""File of a launch folder, written before the program starts; a launch that begins alone has none."""
_TAKEN_OVER = "taken-over"
"""`stopped_because` of a run that a newer one has requested to end."""
_NEXT_ATTEMPT = timedelta(minutes=10)
"""Time between the starts of two successors, if the first one has not taken over."""
_SHORTEST = timedelta(minutes=10)
"""The lowest age for a renewal: by then, the launch itself has started Spark and claimed the job."""
_START_LIMIT = timedelta(minutes=30)
"""How long a successor may take to start Spark and take over, before it is ended."""


def check_renewal(after: timedelta | None, settings: Mapping[str, object] | None, deferrable: bool) -> timedelta | None:
    """Returns the age at which a launch is renewed. Raises PermanentFailure if the task cannot renew it.

    Args:
        after: the age; None for never.
        settings: settings of the run; None before they are rendered.
        deferrable: whether a trigger follows the launch.
    """
    if after is None:
        return None
    if after < _SHORTEST:
        raise config_failure(
            "the run would be renewed before its successor can have started",
            f"set renew_after to {_SHORTEST} or more",
            renew_after=str(after),
        )
    if deferrable:
        raise config_failure(
            "a deferred task cannot renew its run",
            "omit deferrable or renew_after: a trigger has neither Airflow's connection nor the values of the task's "
            "templates, from which a run is started",
            renew_after=str(after),
        )
    if settings is not None and "run.take_over" not in settings:
        raise config_failure(
            "a renewed run would fence the active one",
            "add the setting run.take_over, or use StateflowJob with mode='continuous'",
            renew_after=str(after),
        )
    return after


class Renewal:
    """The renewal of the launch that a task follows.

    Args:
        launcher: the launches of the task.
        start: starts the successor of a launch; called while the launches are locked.
        renew_after: age of a launch at which its successor starts; None for never.
        end_timeout: how long the driver of a successor that is not needed may take to end.
    """

    def __init__(
        self,
        launcher: Launcher,
        start: Callable[[Launch], Launch],
        renew_after: timedelta | None,
        end_timeout: timedelta,
    ) -> None:
        self._launcher = launcher
        self._start = start
        self._renew_after = renew_after
        self._end_timeout = end_timeout
        self._attempted: float | None = None
        self._reported = ""

    def renew_if_due(self, current: Launch) -> None:
        """Starts a successor of the active launch if it is due, and ends one that has not taken over in time."""
        if self._renew_after is None:
            return
        newest = _newest(self._launcher)
        if newest is None or current not in (newest, _predecessor(newest)):
            # Of a newer try: the worker of this one was believed to be dead.
            return
        if newest != current:
            if newest.process():
                self._limit(newest)
                return
            self._report(newest)
        if _age(current) >= self._renew_after and self._may_attempt(current, newest):
            self._attempt(current, newest)

    def next_after(self, ended: Launch) -> Launch:
        """Returns the launch to follow once a launch has ended: its successor, or itself if that is the task's end.

        A launch that was stopped, or that has reached its own end, is the task's end: its successor is ended.
        """
        if counting_launch(self._launcher) == ended:
            others = [other for other in self._launcher.active_launches() if self._launcher.is_of_this_turn(other)]
            graceful_end.end_all(self._launcher, others, self._end_timeout.total_seconds())
        following = counting_launch(self._launcher)
        if following is None or _predecessor(following) != ended:
            return ended
        result = read_result(ended.result_file)
        if result is None or not result.finished:
            why = "it ended without a result" if result is None else str(result.failure())
            log.error("The run in %s has failed, and its successor continues: %s", ended.folder, why)
        log.info("The run in %s continues that in %s", following.folder, ended.folder)
        return following

    def _may_attempt(self, current: Launch, newest: Launch) -> bool:
        since_last = [] if newest == current else [_age(newest)]
        if self._attempted is not None:
            since_last.append(timedelta(seconds=graceful_end.since_boot() - self._attempted))
        return min(since_last, default=_NEXT_ATTEMPT) >= _NEXT_ATTEMPT

    def _attempt(self, current: Launch, newest: Launch) -> None:
        self._attempted = graceful_end.since_boot()
        try:
            with self._launcher.hold_lock():
                # Another try of the task, whose worker is only believed to be dead, may have been faster.
                if _newest(self._launcher) != newest or current.process() is None:
                    return
                successor = self._start(current)
        except Exception:
            log.exception("A successor could not start, and the run continues; next attempt in %s", _NEXT_ATTEMPT)
            return
        log.info("Started process %d to take over; its files are in %s", successor.pid, successor.folder)

    def _report(self, failed: Launch) -> None:
        if failed.folder != self._reported:
            self._reported = failed.folder
            lines = "\n".join(last_lines(failed.log_file, 20)) if failed.log_file.exists() else ""
            log.error(
                "The run in %s ended before it took over; the active run continues, and the next attempt is %s after "
                "this one. The last lines of its log:\n%s",
                failed.folder,
                _NEXT_ATTEMPT,
                lines,
            )

    def _limit(self, successor: Launch) -> None:
        if _age(successor) >= _START_LIMIT:
            log.error("The run in %s has not taken over within %s, and is ended", successor.folder, _START_LIMIT)
            graceful_end.end(self._launcher, successor, self._end_timeout.total_seconds())


def counting_launch(launcher: Launcher) -> Launch | None:
    """Returns the launch of this turn that the task follows, or with which it has ended; None without one.

    That is the newest one, unless its predecessor is still active, or has ended without being replaced by it.
    """
    newest = _newest(launcher)
    before = None if newest is None else _predecessor(newest)
    if newest is None or before is None:
        return newest
    return newest if before.process() is None and _replaces(newest, before) else before


def _replaces(newer: Launch, ended: Launch) -> bool:
    """Returns whether a launch counts instead of its predecessor, which has ended."""
    last, result = read_result(newer.result_file), read_result(ended.result_file)
    if last is not None and last.finished:
        return True
    if result is not None and result.finished:
        return bool(result.result.get("stopped_because") == _TAKEN_OVER)
    is_fenced = result is not None and result.failure().code == "fenced"
    return is_fenced or newer.process() is not None


def _newest(launcher: Launcher) -> Launch | None:
    return next(filter(launcher.is_of_this_turn, launcher.launches()), None)


def _predecessor(launch: Launch) -> Launch | None:
    folder = Path(launch.folder)
    try:
        return read_record(folder.parent / (folder / PREDECESSOR).read_text())
    except FileNotFoundError:
        return None


def _age(launch: Launch) -> timedelta:
    # Both are measured since the host's boot, so that changes of its clock have no influence.
    return timedelta(seconds=graceful_end.since_boot() - launch.started / os.sysconf("SC_CLK_TCK"))


_CHUNK_BYTES = 1 << 20
_LONGEST_LINE = 1 << 16
"""Bytes of a line that is passed on as a whole: memory and time must not grow with what a program prints."""


class LogFollower:
    """Passes each completed line of a file to a callback; a very long one in parts, before it is completed.

    Args:
        path: an existing file to which another process appends.
        emit: called with each line, without its end.
        skip_to_last: start at most this many bytes before the current end of the file; None to start at its beginning.
    """

    def __init__(self, path: Path, emit: Callable[[str], object], skip_to_last: int | None = None) -> None:
        self._file: BinaryIO = path.open("rb")
        self._emit = emit
        self._incomplete = b""
        if skip_to_last is not None:
            self._skip(path.stat().st_size - skip_to_last)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.copy()
        if self._incomplete:
            self._emit_all([self._incomplete])
        self._file.close()

    def copy(self) -> None:
        """Emits every line that was completed since the last call."""
        while data := self._file.read(_CHUNK_BYTES):
            *lines, self._incomplete = (self._incomplete + data).split(b"\n")
            self._emit_all(lines)
            *parts, self._incomplete = _parts(self._incomplete)
            self._emit_all(parts)

    def _emit_all(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            for part in _parts(line):
                self._emit(part.decode(errors="replace").rstrip("\r"))

    def _skip(self, position: int) -> None:
        if position > 0:
            self._file.seek(position)
            # The rest of a line is skipped, but not a whole one that is longer.
            if not self._file.readline(_LONGEST_LINE).endswith(b"\n"):
                self._file.seek(position)


def _parts(line: bytes) -> list[bytes]:
    """Returns a line in parts that are not too long, cut between characters of UTF-8."""
    parts, begin = [], 0
    while len(line) - begin > _LONGEST_LINE:
        end = begin + _LONGEST_LINE
        end -= next((back for back in range(4) if line[end - back] & 0xC0 != 0x80), 0)
        parts.append(line[begin:end])
        begin = end
    return [*parts, line[begin:]]


def last_lines(path: Path, count: int) -> list[str]:
    """Returns the last `count` lines of a log file, for an error message."""
    lines: deque[str] = deque(maxlen=count)
    with LogFollower(path, lines.append, skip_to_last=64 * 1024):
        pass
    return list(lines)
