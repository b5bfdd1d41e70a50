"""Bugs of keyed state, operator state, timers and time to live."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from stateflow.checkpoint.restore import state_assignment as assignment
from stateflow.runtime.task import store_cache
from stateflow.state.kinds.key_context import KeyContext
from stateflow.state.kinds.keyed_state import KeyedState
from stateflow.state.kinds.list_state import ListState
from stateflow.state.kinds.maps.map_state import MapState
from stateflow.state.kinds.operator_state import OperatorListState, OperatorStateStore
from stateflow.state.kinds.timers import TimerIndex, Timers
from stateflow.state.kinds.ttl import Ttl
from tests.support.mutants.registry import Mutants

MUTANTS = Mutants()


@MUTANTS.plant("kept-entry", (MapState, "remove"))
def _kept_entry(*_: object) -> None:
    """Removing an entry of a map does nothing."""


# -- time to live


@MUTANTS.plant("late-expiry", (Ttl, "is_elapsed"))
def _expires_late(self: Ttl, begin: int) -> bool:
    """An entry expires a millisecond too late."""
    return self.now is not None and begin + self._milliseconds < self.now


_new_ttl, _write = Ttl.__init__, Ttl.write


@MUTANTS.plant("renewed-by-batches", (Ttl, "__init__"))
def _since_the_restore(self: Ttl, *arguments: Any) -> None:
    """Each batch restarts the time to live of every entry."""
    _new_ttl(self, *arguments)
    self.since = self.now


@MUTANTS.plant("from-first-watermark", (Ttl, "__init__"))
def _from_the_first_watermark(self: Ttl, *arguments: Any) -> None:
    """The time to live of entries of the first batches starts at the first watermark."""
    _new_ttl(self, *arguments)
    self.always = False


@MUTANTS.plant("shortened-life", (Ttl, "write"))
def _forgets_the_life_before(self: Ttl, key: bytes, data: bytes, old: Any) -> None:
    """A late timer shortens an entry's time to live."""
    _write(self, key, data, None)


@MUTANTS.plant("no-renewal", (Ttl, "_renew"))
def _reads_do_not_renew(*_: object) -> None:
    """A read does not renew the time to live."""


@MUTANTS.plant("stale-reads", (Ttl, "on_read"))
def _stale_again_and_again(self: Ttl, key: bytes, data: bytes) -> bool:
    """An expired entry is not removed when it is read."""
    return self.returns_expired if self.is_expired(data) else True


# -- timers and namespaces


@MUTANTS.plant("lost-timers", (store_cache, "timers_of"))
def _timers_not_restored(backend: Any, base: Any) -> TimerIndex:
    """Timers are not restored."""
    if backend not in store_cache._timers:
        store_cache._timers[backend] = TimerIndex()
    return store_cache._timers[backend]


_change_timer = Timers._change


@MUTANTS.plant("undeleted-timers", (Timers, "_change"))
def _deletions_of_timers_ignored(self: Timers, domain: Any, time: int, exists: bool) -> None:
    """A deleted timer fires."""
    if exists:
        _change_timer(self, domain, time, exists)


@MUTANTS.plant("void-timers", (Timers, "_change"))
def _timers_of_the_void_namespace(self: Timers, domain: Any, time: int, exists: bool) -> None:
    """Timers lose their namespace."""
    self._context.namespace = b"\x00"
    _change_timer(self, domain, time, exists)


@MUTANTS.plant("open-scans", (KeyContext, "scan"))
def _scan_into_other_namespaces(self: KeyContext, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """A namespace includes the entries of namespaces that it is a prefix of."""
    self.write_through()
    return self.backend.scan(prefix)


@MUTANTS.plant("no-namespaces", (KeyedState, "set_namespace"))
def _no_namespaces(*_: object) -> None:
    """Namespaces share their state."""


# -- lists, redistribution, failing rows

_new_list, _even_split = ListState.__init__, assignment.even_split


@MUTANTS.plant("newest-first", (ListState, "__init__"))
def _order_by_the_newest(self: ListState[Any], context: KeyContext, *arguments: Any) -> None:
    """Newer elements of a list come first."""
    _new_list(self, context, *arguments)
    self._epoch = struct.pack(">Q", (1 << 63) - context.time.epoch)


@MUTANTS.plant("colliding-elements", (ListState, "__init__"))
def _elements_of_batches_collide(self: ListState[Any], context: KeyContext, *arguments: Any) -> None:
    """Elements of another batch are overwritten."""
    _new_list(self, context, *arguments)
    self._epoch = struct.pack(">Q", 0)


@MUTANTS.plant("reversed-split", (assignment, "even_split"))
def _last_ones_first(items: Any, parts: int, first: int = 0) -> list[list[Any]]:
    """A split list is reversed."""
    return _even_split(items, parts, first)[::-1]


@MUTANTS.plant("own-only", (OperatorListState, "get"))
def _own_only(self: OperatorListState[Any]) -> Iterator[Any]:
    """A union list shows a subtask only its own elements."""
    return map(self._serializer.decode, list(self._own))


@MUTANTS.plant("no-rollback", (KeyedState, "rollback"))
def _no_rollback(self: KeyedState) -> None:
    """State changes of a row that fails are kept."""
    for state in self._states.values():
        state.discard()


@MUTANTS.plant("no-operator-rollback", (OperatorStateStore, "rollback"))
def _operator_state_stays(*_: object) -> None:
    """Changes of operator state by a row that fails are kept."""
