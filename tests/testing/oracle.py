"""What state must be after a history of batches, in plain dictionaries.

Written from the docstrings of descriptors and states, and docs/differences.md. Where more than one answer is allowed,
as for expired entries that may have been removed, the oracle checks the answer and continues from it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from stateflow import StateTtlConfig
from stateflow.query.state import StateEntry
from stateflow.testing import PendingTimer
from tests.testing.every_state import KINDS, SETS_TIMERS, Row, Rule, Seen, Ttls, steps_of_timer, unpack

Update, Visibility = StateTtlConfig.UpdateType, StateTtlConfig.StateVisibility
Characteristic = StateTtlConfig.TtlTimeCharacteristic
StateKey = tuple[str, str, Any]
"""State, key, namespace."""
Scope = tuple[str, Any]
"""Key, namespace."""
Timer = tuple[str, int]
"""Domain, time."""


@dataclass
class Entry:
    """A value, a list's element or a map's entry.

    Attributes:
        time: the time domain of `latest` and `earliest`; None when it was written without a time to live.
        latest: when it was written, if known: never before the entry that it replaced.
        earliest: the same, if the entry that it replaced had been cleaned up by then.
        certain: False once it may have been cleaned up.
    """

    value: str
    time: Characteristic | None = None
    latest: int | None = None
    earliest: int | None = None
    certain: bool = True


@dataclass
class Oracle:
    """The state between two batches.

    Attributes:
        timer_time: of the event-time timer that fires now; None while none fires.
        since: from when each state has had its time to live; None before there is a time. No entry lives from an
            earlier time, except in states that `always` had one.
        is_begun: whether a batch has run.
        full: whether snapshots are full: then expired entries are removed by every batch of their subtask.
        entries: by state and scope, and within it by a number in a list, by the key in a map.
        split, union: operator state of each subtask.
        homes: the subtask of each key, if it emitted.
    """

    ttls: Ttls
    default: str | None = None
    parallelism: int = 1
    full: bool = True
    watermark: int | None = None
    processing_time: int = 0
    timer_time: int | None = None
    since: dict[str, int | None] = field(default_factory=lambda: dict.fromkeys(KINDS))
    always: set[str] = field(default_factory=lambda: set(KINDS))
    is_begun: bool = False
    entries: dict[StateKey, dict[Any, Entry]] = field(default_factory=dict)
    timers: dict[Scope, set[Timer]] = field(default_factory=dict)
    split: list[list[str]] = field(default_factory=lambda: [[]])
    union: list[list[str]] = field(default_factory=lambda: [[]])
    rules: dict[str, int] = field(default_factory=dict)
    homes: dict[str, int] = field(default_factory=dict)
    appended: int = 0

    def __post_init__(self) -> None:
        self.ttls = _in_force(self.ttls)

    # -- restores -----------------------------------------------------------------------------------------------

    def rescale(self, parallelism: int) -> None:
        if parallelism != self.parallelism:
            self.homes.clear()
        self.parallelism = parallelism

    def _redistribute(self) -> None:
        """Part of a batch: without one, a restore at another parallelism and back changes nothing."""
        if len(self.split) != self.parallelism:
            words = len(_flat(self.split))
            self.split = _even_split(self.split, self.parallelism)
            self.union = _even_split(self.union, self.parallelism, words % self.parallelism)

    def declare(self, ttls: Ttls) -> None:
        """Continues with other times to live: a new one, or one in another time domain, begins again."""
        ttls = _in_force(ttls)
        for name in KINDS:
            before, now = self.ttls[name], ttls[name]
            if now is not None and (before is None or _domain(before) is not _domain(now)):
                self.since[name] = None
                if self.is_begun:
                    self.always.discard(name)
        self.ttls = ttls

    # -- batches ------------------------------------------------------------------------------------------------

    def batch(
        self, seen: Sequence[Seen], rows: Sequence[Row] = (), rules: Iterable[Rule] = (), until: int | None = None
    ) -> None:
        """Checks that a batch at the current times emitted `seen`, and applies its changes.

        Args:
            rows: those that do not fail.
            until: event-time timers fire up to it; by default up to the watermark.
        """
        self._begin_lives()
        self._redistribute()
        for rule in rules:
            self.rules[rule.word] = rule.number
        self.rules = {word: number for word, number in self.rules.items() if number}
        union = Counter(_flat(self.union))
        for at in seen:
            assert self.homes.setdefault(at.key, at.subtask) == at.subtask < self.parallelism
        for subtask in range(self.parallelism):
            _check_order([at for at in seen if at.subtask == subtask])
        self._fire([at for at in seen if at.number < 0], self.watermark if until is None else until)
        came = {row.key: [other for other in rows if other.key == row.key] for row in rows}
        added: dict[int, list[str]] = {}
        for at in seen:
            if at.number < 0:
                continue
            row = came[at.key].pop(0)
            assert row.number == at.number, "rows of a key are not in their order"
            self._check_row(row, at, union, added)
        assert not any(came.values()), "rows without output"
        self._clean_up({at.subtask for at in seen})

    def _check_row(self, row: Row, at: Seen, union: Counter[str], added: dict[int, list[str]]) -> None:
        steps, results = unpack(row.steps), unpack(at.results)
        for step, result in zip(steps, results, strict=True):
            namespace, about, verb, *arguments = step
            match about, verb:
                case "rules", _:
                    assert result == self.rules
                case "split", "add":
                    self.split[at.subtask] += arguments
                case "split", "get":
                    assert result == self.split[at.subtask]
                case "union", "add":
                    added.setdefault(at.subtask, []).extend(arguments)
                    self.union[at.subtask] += arguments
                case "union", "get":
                    own = added.get(at.subtask, [])
                    before = len(result) - len(own)
                    assert Counter(result[:before]) == union and result[before:] == own
                case _:
                    self._do((row.key, namespace), about, verb, arguments, result)

    def _fire(self, seen: list[Seen], until: int | None) -> None:
        """Checks that the timers that fired are those that were due, in order of time."""
        emitted: dict[Scope, list[list[Any]]] = defaultdict(list)
        for at in seen:
            namespace, *rest = unpack(at.results)
            emitted[at.key, namespace].append(rest)
        for scope in [*self.timers]:
            limits = {"event": until, "processing": self.processing_time}
            found = emitted.pop(scope, [])
            for domain, time in self._due(scope, limits):
                assert found and found[0][:2] == [domain, time], f"{scope}: {domain} {time} is due, fired: {found}"
                results = found.pop(0)[2]
                # A timer reads state that lives by event time at its own time.
                self.timer_time = time if domain == "event" else None
                for step, result in zip(steps_of_timer(scope[1], domain, time), results, strict=True):
                    _, about, verb, *arguments = step
                    self._do(scope, about, verb, arguments, result)
            self.timer_time = None
            assert not found, f"{scope} fired: {found}"
        assert not emitted, f"fired without being set: {emitted}"

    def _due(self, scope: Scope, limits: dict[str, int | None]) -> Iterable[Timer]:
        """Event time until no timer is due, then processing time; again if that set a timer that is due."""
        timers = self.timers[scope]
        again = True
        while again:
            again = False
            for domain, limit in limits.items():
                while limit is not None and (due := [t for t in timers if t[0] == domain and t[1] <= limit]):
                    first = min(due)
                    timers.remove(first)
                    again = True
                    yield first

    # -- one step -----------------------------------------------------------------------------------------------

    def _do(self, scope: Scope, about: str, verb: str, arguments: list[Any], result: Any) -> None:
        if about == "timer":
            timers = self.timers.setdefault(scope, set())
            timer = (arguments[0], arguments[1])
            timers.add(timer) if verb == "register" else timers.discard(timer)
            return
        scope_key = (about, *scope)
        match about, verb:
            case _, "clear":
                self.entries[scope_key] = {}
            case ("list", "get") | ("map", "items" | "keys" | "values"):
                shown = {"keys": lambda k, v: k, "items": _item}
                self._read(scope_key, result, shown.get(verb, _value))
            case "list", _:
                self._change_list(scope_key, verb, arguments)
            case "map", _:
                self._do_to_map(scope_key, verb, arguments, result)
            case _, "value" | "get":
                self._read(scope_key, [] if result in (None, self._default(about)) else [result])
                assert result is not None or self._default(about) is None
            case "value", _:
                self.entries[scope_key] = {}
                if arguments[0] is not None:
                    self._write(scope_key, 0, arguments[0])
            case _:
                self._add(scope_key, arguments[0], result)

    def _change_list(self, scope_key: StateKey, verb: str, arguments: list[Any]) -> None:
        if verb == "update":
            self.entries[scope_key] = {}
        for word in arguments if verb == "add" else arguments[0]:
            self.appended += 1
            self._write(scope_key, self.appended, word)

    def _do_to_map(self, scope_key: StateKey, verb: str, arguments: list[Any], result: Any) -> None:
        entries = self.entries.setdefault(scope_key, {})
        match verb:
            case "put":
                self._write(scope_key, *arguments)
            case "put_all":
                for key, word in arguments[0].items():
                    self._write(scope_key, key, word)
            case "remove":
                entries.pop(arguments[0], None)
            case "get":
                self._read(scope_key, [] if result is None else [result], only=arguments[0])
            case "contains":
                held = [e.value for k, e in entries.items() if k == arguments[0]]
                assert held or not result
                self._read(scope_key, held if result else [], only=arguments[0])
            case _:
                self._check_emptiness(scope_key, *result)

    def _check_emptiness(self, scope_key: StateKey, was_empty: bool, items: list[Any]) -> None:
        """Checks `is_empty`, and the items read after it. It is a read: an expired entry is not returned again."""
        name = scope_key[0]
        stale = [e for e in self.entries[scope_key].values() if self._may_be_expired(name, e) and self._relaxed(name)]
        assert (items == []) if was_empty else (items or stale)
        assert not (was_empty and any(e.certain for e in stale))
        for entry in stale:
            # The first one is removed.
            entry.certain = False
        self._read(scope_key, items, _item)

    def _read(
        self,
        scope_key: StateKey,
        result: Sequence[Any],
        shown: Callable[[Any, str], Any] | None = None,
        only: Any = None,
    ) -> None:
        """Checks that `result` is what a read of all entries returns in their order, or of the entry `only`."""
        left, entries, name = list(result), self.entries.setdefault(scope_key, {}), scope_key[0]
        for key in sorted(entries) if only is None else [only] if only in entries else []:
            entry = entries[key]
            was_given = left[:1] == [(shown or _value)(key, entry.value)]
            expired, may_be = self._is_expired(name, entry), self._may_be_expired(name, entry)
            if was_given:
                assert not expired or self._relaxed(name), f"{scope_key} gives {entry}, which has expired"
                del left[0]
            else:
                hidden = not entry.certain or (may_be and not self._relaxed(name))
                assert hidden, f"{scope_key} lacks {entry}: {result}"
            if expired or not was_given:
                del entries[key]
                continue
            # An entry that may have expired is returned a last time.
            entry.certain = not (may_be and self._relaxed(name))
            if self._renews(name):
                self._write(scope_key, key, entry.value)
        assert not left, f"{scope_key} gives {left} of {result}"

    def _add(self, scope_key: StateKey, word: str, result: str) -> None:
        """Checks `add`: the result begins with the value that a read returns."""
        first = f"fold+{word}" if scope_key[0] == "folding" else word
        before = self.entries.get(scope_key, {}).get(0)
        if before is None:
            assert result == first
        elif result == first:
            self._read(scope_key, [])
        else:
            assert result == f"{before.value}+{word}"
            self._read(scope_key, [before.value])
        self._write(scope_key, 0, result)

    def _write(self, scope_key: StateKey, key: Any, value: str) -> None:
        """Sets an entry, which lives from now on; in event time never shorter than the entry that it replaces."""
        name, of = scope_key[0], self.entries.setdefault(scope_key, {})
        ttl, now, before = self.ttls[name], self._now(name), of.get(key)
        if ttl is None:
            of[key] = Entry(value)
            return
        written = Entry(value, _domain(ttl), now, now)
        if before is not None and before.time is written.time is Characteristic.EventTime:
            written.latest = _later(now, before.latest)
            written.earliest = _later(now, before.earliest) if before.certain else now
        of[key] = written

    # -- times to live ------------------------------------------------------------------------------------------

    def _is_expired(self, name: str, entry: Entry) -> bool:
        return self._is_over(name, entry, entry.latest)

    def _may_be_expired(self, name: str, entry: Entry) -> bool:
        return self._is_over(name, entry, entry.earliest)

    def _is_over(self, name: str, entry: Entry, written: int | None) -> bool:
        ttl, now = self.ttls[name], self._now(name)
        if ttl is None:
            return False
        since, written = self.since[name], written if entry.time is _domain(ttl) else None
        begin = written if name in self.always and written is not None else _later(since, written)
        return begin is not None and now is not None and begin + ttl.milliseconds <= now

    def _begin_lives(self) -> None:
        """A batch begins: times to live that have not begun begin now, if there is a time."""
        self.is_begun = True
        for name, since in self.since.items():
            self.since[name] = self._now(name) if since is None else since

    def _clean_up(self, worked: set[int]) -> None:
        """Expired entries may have been removed; in a full snapshot they are."""
        for scope_key, of in self.entries.items():
            ttl = self.ttls[scope_key[0]]
            expired = [key for key, entry in of.items() if self._may_be_expired(scope_key[0], entry)]
            for key in expired:
                if self.full and self.homes.get(scope_key[1]) in worked and self._is_expired(scope_key[0], of[key]):
                    del of[key]
                elif self.full or (ttl is not None and ttl.background_cleanup):
                    of[key].certain = False

    def _now(self, name: str) -> int | None:
        ttl = self.ttls[name]
        if ttl is None:
            return None
        if _domain(ttl) is not Characteristic.EventTime:
            return self.processing_time
        return self.watermark if self.timer_time is None else self.timer_time

    def _relaxed(self, name: str) -> bool:
        ttl = self.ttls[name]
        return ttl is not None and ttl.state_visibility is Visibility.ReturnExpiredIfNotCleanedUp

    def _renews(self, name: str) -> bool:
        ttl = self.ttls[name]
        return ttl is not None and ttl.update_type is Update.OnReadAndWrite

    def _default(self, about: str) -> str | None:
        return self.default if about == "value" else None

    # -- seen from outside --------------------------------------------------------------------------------------

    def check_read(self, scope_key: StateKey, found: Any) -> None:
        """Checks state as a function would read it now; the read changes nothing."""
        name, key, namespace = scope_key
        verb = {"list": "get", "map": "items", "value": "value"}.get(name, "get")
        result = [[k, v] for k, v in found.items()] if name == "map" else found
        reader = deepcopy(self)
        reader._begin_lives()
        reader._do((key, namespace), name, verb, [], result)

    def check_hashes(self, found: Iterable[StateEntry]) -> None:
        stored: dict[StateKey, list[Any]] = defaultdict(list)
        for each in found:
            value = "+".join(each.value) if each.state == "aggregating" else each.value
            shown = [each.map_key, value] if each.state == "map" else value
            stored[each.state, str(each.key[0]), each.namespace].append(shown)
        for scope_key, of in self.entries.items():
            left = stored.pop(scope_key, [])
            for key in sorted(of):
                shown = (_item if scope_key[0] == "map" else _value)(key, of[key].value)
                if left[:1] == [shown]:
                    del left[0]
                else:
                    assert not of[key].certain, f"{scope_key} has lost {shown}"
            assert not left, f"{scope_key} has kept {left}"
        assert not stored, f"stored without being written: {stored}"

    def check_timers(self, found: Iterable[PendingTimer]) -> None:
        stored = Counter((t.key, t.namespace, t.domain.value, t.time) for t in found)
        assert stored == Counter((*scope, *timer) for scope, of in self.timers.items() for timer in of)

    def check_operator_state(self, split: list[list[str]], union: list[list[str]], rules: dict[str, int]) -> None:
        assert split == self.split if len(split) == len(self.split) else _flat(split) == _flat(self.split)
        assert sorted(_flat(union)) == sorted(_flat(self.union))
        assert rules == self.rules


def _domain(ttl: StateTtlConfig) -> Characteristic:
    return ttl.ttl_time_characteristic


def _later(first: int | None, second: int | None) -> int | None:
    return max((time for time in (first, second) if time is not None), default=None)


def _check_order(seen: list[Seen]) -> None:
    """Checks that timers come before rows, in order of time over all keys, those of event time first. A timer that sets
    another may set it for an earlier time."""
    timers = [unpack(at.results) for at in seen if at.number < 0]
    assert all(at.number < 0 for at in seen[: len(timers)])
    times = [(domain, time) for _, domain, time, _ in timers]
    if all(time % 4 != SETS_TIMERS for _, time in times):
        assert times == sorted(times)


def _in_force(ttls: Ttls) -> Ttls:
    """Returns None for a time to live that is disabled."""
    return {name: ttl if ttl and ttl.update_type is not Update.Disabled else None for name, ttl in ttls.items()}


def _value(key: Any, value: str) -> str:
    return value


def _item(key: Any, value: str) -> list[Any]:
    return [key, value]


def _flat(lists: Iterable[list[str]]) -> list[str]:
    return [word for each in lists for word in each]


def _even_split(lists: Sequence[list[str]], parts: int, first: int = 0) -> list[list[str]]:
    """Keeps the order; the remainder is distributed over the parts from `first` on."""
    words = _flat(lists)
    longer = {(first + at) % parts for at in range(len(words) % parts)}
    sizes = [len(words) // parts + (at in longer) for at in range(parts)]
    return [[words.pop(0) for _ in range(size)] for size in sizes]
