"""State with one mistake in it, each made by replacing one function of the real code.

A machine that finds nothing in the real code says something only as far as it finds these.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

from stateflow.checkpoint.restore import redistribution
from stateflow.runtime.task import store_cache
from stateflow.state.kinds.key_context import KeyContext
from stateflow.state.kinds.keyed_state import KeyedState
from stateflow.state.kinds.list_state import ListState
from stateflow.state.kinds.operator_state import OperatorListState, OperatorStateStore
from stateflow.state.kinds.timer_index import TimerIndex
from stateflow.state.kinds.timers import Timers
from stateflow.state.kinds.ttl.entry_ttl import Ttl

Mutant = tuple[Any, str, Callable[..., Any]]
"""What is replaced where."""


def _expires_late(self: Ttl, begin: int) -> bool:
    return self.now is not None and begin + self._milliseconds < self.now


_new_ttl = Ttl.__init__


def _since_the_restore(self: Ttl, *arguments: Any) -> None:
    _new_ttl(self, *arguments)
    self.since = self.now


def _from_the_first_watermark(self: Ttl, *arguments: Any) -> None:
    _new_ttl(self, *arguments)
    self.always = False


_write = Ttl.write


def _forgets_the_life_before(self: Ttl, key: bytes, data: bytes, old: Any) -> None:
    _write(self, key, data, None)


def _reads_do_not_renew(self: Ttl, key: bytes, data: bytes) -> None:
    pass


def _stale_again_and_again(self: Ttl, key: bytes, data: bytes) -> bool:
    return self.returns_expired if self.is_expired(data) else True


def _timers_not_restored(backend: Any, base: Any) -> TimerIndex:
    if backend not in store_cache._timers:
        store_cache._timers[backend] = TimerIndex()
    return store_cache._timers[backend]


_change_timer = Timers._change


def _deletions_of_timers_ignored(self: Timers, domain: Any, time: int, exists: bool) -> None:
    if exists:
        _change_timer(self, domain, time, exists)


def _timers_of_the_void_namespace(self: Timers, domain: Any, time: int, exists: bool) -> None:
    self._context.namespace = b"\x00"
    _change_timer(self, domain, time, exists)


def _scan_into_other_namespaces(self: KeyContext, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    self.write_through()
    return self.backend.scan(prefix)


def _no_namespaces(self: KeyedState, namespace: object) -> None:
    pass


_new_list = ListState.__init__


def _order_by_the_newest(self: ListState[Any], context: KeyContext, *arguments: Any) -> None:
    _new_list(self, context, *arguments)
    self._epoch = struct.pack(">Q", (1 << 63) - context.time.epoch)


def _elements_of_batches_collide(self: ListState[Any], context: KeyContext, *arguments: Any) -> None:
    _new_list(self, context, *arguments)
    self._epoch = struct.pack(">Q", 0)


_even_split = redistribution.even_split


def _last_ones_first(items: Any, parts: int, first: int = 0) -> list[list[Any]]:
    return _even_split(items, parts, first)[::-1]


def _own_only(self: OperatorListState[Any]) -> Iterator[Any]:
    return map(self._serializer.decode, list(self._own))


def _no_rollback(self: KeyedState) -> None:
    for state in self._states.values():
        state.discard()


def _operator_state_stays(self: OperatorStateStore) -> None:
    pass


MUTANTS: dict[str, Mutant] = {
    "an entry lives a millisecond too long": (Ttl, "is_elapsed", _expires_late),
    "every batch begins all lives anew": (Ttl, "__init__", _since_the_restore),
    "entries of the first batches live from the first watermark": (Ttl, "__init__", _from_the_first_watermark),
    "a late timer shortens a life": (Ttl, "write", _forgets_the_life_before),
    "reading does not renew": (Ttl, "_renew", _reads_do_not_renew),
    "what has expired is read again and again": (Ttl, "on_read", _stale_again_and_again),
    "timers are not restored": (store_cache, "timers_of", _timers_not_restored),
    "a deleted timer fires": (Timers, "_change", _deletions_of_timers_ignored),
    "timers forget their namespace": (Timers, "_change", _timers_of_the_void_namespace),
    "a namespace shows entries of longer ones": (KeyContext, "scan", _scan_into_other_namespaces),
    "namespaces share their state": (KeyedState, "set_namespace", _no_namespaces),
    "newer elements of a list come first": (ListState, "__init__", _order_by_the_newest),
    "elements of another batch are overwritten": (ListState, "__init__", _elements_of_batches_collide),
    "a split list turns round": (redistribution, "even_split", _last_ones_first),
    "a union list shows a subtask its own": (OperatorListState, "get", _own_only),
    "what a failing row did to state stays": (KeyedState, "rollback", _no_rollback),
    "what a failing row did to operator state stays": (OperatorStateStore, "rollback", _operator_state_stays),
}
