"""The conformance suite of keyed state backends.

To test a backend, subclass `StateBackendConformance` in a test module with a fixture that opens backends::

    import pytest
    from stateflow.testing.conformance.state_backend import StateBackendConformance

    class TestMyBackend(StateBackendConformance):
        @pytest.fixture
        def opener(self):
            def open_store(folder, cache, base):     # see `Opener`
                return MyBackend(...)
            return open_store

If the name of the backend in state files is not one of the settings, override the attribute `backend`.
To see values in assertion failures, add this to a conftest:
``pytest.register_assert_rewrite("stateflow.testing.conformance.state_backend")``.
"""

from __future__ import annotations

import gc
import random  # noqa: TID251 - seeded dice for tests; nothing is decided by it
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path

import pytest

from stateflow.clock import ManualClock
from stateflow.state.backends.base import KeyedStateBackend
from stateflow.state.handles import Base, SubtaskState
from stateflow.state.host_cache import HostCache
from stateflow.state.stored_key import decode_group, encode_group
from stateflow.storage import MemoryStorage, Storage
from stateflow.types.key_groups import range_of, subtask_of

Opener = Callable[[Path, HostCache, Base], KeyedStateBackend]
"""Opens a state backend.

Arguments: its working folder, which does not exist; the host's file cache; the state that it starts from.
"""
GROUPS = 64
"""Number of key groups of the operator."""
_numbers = count(1)
"""For unique names of snapshots and hosts in this process."""


def key_of(group: int, rest: bytes = b"") -> bytes:
    """Returns a stored key: its key group, then `rest`."""
    return encode_group(group) + rest


class OperatorSubtasks:
    """All subtasks of one operator; each restore moves them to a new host.

    Args:
        opener: opens a state backend.
        folder: parent of the working folders and file caches.
        backend: value of `SubtaskState.backend`.
    """

    def __init__(self, opener: Opener, folder: Path, backend: str) -> None:
        self.storage: Storage = MemoryStorage()
        self.stores: list[KeyedStateBackend] = []
        self._opener = opener
        self._folder = folder
        self._backend = backend

    def open(self, states: Sequence[SubtaskState] = (), parallelism: int = 1) -> KeyedStateBackend:
        """Opens every subtask on a host with an empty file cache. Returns the first subtask's state backend."""
        host_folder = self._folder / f"host-{next(_numbers)}"
        self.stores = [self._open(host_folder, s, parallelism, states) for s in range(parallelism)]
        return self.stores[0]

    def _open(
        self, host_folder: Path, subtask: int, parallelism: int, states: Sequence[SubtaskState]
    ) -> KeyedStateBackend:
        owned = range_of(subtask, parallelism, GROUPS)
        base = Base(subtask, owned, tuple(s for s in states if s.groups.overlap(owned)))
        cache = HostCache.direct(host_folder / f"cache-{subtask}", self.storage, ManualClock(next(_numbers)))
        return self._opener(host_folder / f"work-{subtask}", cache, base)

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Writes each change to the subtask that owns its key group; None removes a key."""
        parallelism = len(self.stores)
        for number, store in enumerate(self.stores):
            store.write({k: v for k, v in changes.items() if _owner(k, parallelism) == number})

    def snapshot(self) -> list[SubtaskState]:
        """Takes a snapshot of each subtask."""
        return [self._snapshot(number, store) for number, store in enumerate(self.stores)]

    def _snapshot(self, number: int, store: KeyedStateBackend) -> SubtaskState:
        owned = range_of(number, len(self.stores), GROUPS)
        name = f"data/{1:020d}/{next(_numbers):010d}-a/op-{number}-"
        taken = store.snapshot(name)
        return SubtaskState(
            subtask=number,
            first_group=owned.first,
            last_group=owned.last,
            snapshot=name,
            files=list(taken.files),
            backend=self._backend,
            inline=taken.inline,
            store_manifest=taken.store_manifest,
        )

    def close(self) -> None:
        """Closes every state backend."""
        for store in self.stores:
            store.close()
        self.stores = []

    def restored(self, parallelism: int = 1) -> list[SubtaskState]:
        """Takes a snapshot and restores it on a new host. Returns the snapshot."""
        states = self.snapshot()
        self.close()
        self.open(states, parallelism)
        return states

    def content(self) -> dict[bytes, bytes]:
        """Returns the entries of all subtasks; asserts that each key is in the subtask that owns it."""
        found: dict[bytes, bytes] = {}
        for number, store in enumerate(self.stores):
            entries = dict(store.scan(b""))
            assert [k for k in entries if _owner(k, len(self.stores)) != number] == []
            found |= entries
        return found


def _owner(key: bytes, parallelism: int) -> int:
    return subtask_of(decode_group(key), parallelism, GROUPS)


__all__ = ["GROUPS", "Opener", "OperatorSubtasks", "StateBackendConformance", "key_of"]


_EDGES = (b"", b"\0", b"\0\0", b"\0\xff", b"a", b"a\0", b"a\0b", b"a\xff", b"ab", b"b", b"\xff", b"\xff\xff")


class StateBackendConformance:
    """Tests of the contract of `stateflow.state.backends.base.KeyedStateBackend`."""

    backend = "rocksdb"
    """Name of the backend in manifests."""

    @pytest.fixture
    def subtasks(self, opener: Opener, tmp_path: Path) -> Iterator[OperatorSubtasks]:
        """The subtasks of an operator, not opened yet."""
        subtasks = OperatorSubtasks(opener, tmp_path, self.backend)
        yield subtasks
        subtasks.close()

    @pytest.fixture
    def store(self, subtasks: OperatorSubtasks) -> KeyedStateBackend:
        """The state backend of the only subtask."""
        return subtasks.open()

    # -- reading and writing ------------------------------------------------------------------------------------

    def test_what_was_written_is_read(self, store: KeyedStateBackend) -> None:
        store.write({key_of(1, b"a"): b"1", key_of(1, b"b"): b""})
        assert store.get(key_of(1, b"a")) == b"1"
        assert store.get(key_of(1, b"b")) == b""
        assert store.get(key_of(1, b"c")) is None
        store.write({key_of(1, b"a"): b"2"})
        assert store.get(key_of(1, b"a")) == b"2"

    def test_many_keys_are_read_in_the_order_that_was_asked_for(self, store: KeyedStateBackend) -> None:
        store.write({key_of(n): bytes([n]) for n in range(0, 20, 2)})
        asked = [key_of(n) for n in (7, 2, 18, 2, 0)]
        assert store.multi_get(asked) == [None, b"\x02", b"\x12", b"\x02", b"\0"]
        assert store.multi_get([]) == []

    def test_what_was_removed_is_gone_and_may_come_back(self, store: KeyedStateBackend) -> None:
        key = key_of(3, b"k")
        store.write({key: b"1"})
        assert list(store.scan(key_of(3))) == [(key, b"1")]
        store.write({key: None, key_of(3, b"never there"): None})
        assert store.get(key) is None and store.multi_get([key]) == [None] and list(store.scan(b"")) == []
        store.write({key: b"2"})
        assert store.get(key) == b"2" and list(store.scan(b"")) == [(key, b"2")]

    def test_a_write_of_nothing_changes_nothing(self, store: KeyedStateBackend) -> None:
        store.write({key_of(1): b"1"})
        store.write({})
        assert list(store.scan(b"")) == [(key_of(1), b"1")]

    def test_a_write_that_cannot_be_done_is_not_done_in_part(self, store: KeyedStateBackend) -> None:
        store.write({key_of(1): b"old"})
        with pytest.raises(_IterationFailed):
            store.write(_FailingChanges({key_of(1): b"new", key_of(2): b"new"}))
        assert list(store.scan(b"")) == [(key_of(1), b"old")]

    @pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 3 << 20])
    def test_a_value_may_be_large(self, subtasks: OperatorSubtasks, size: int) -> None:
        value = random.Random(size).randbytes(size)
        subtasks.open().write({key_of(1, b"large"): value, key_of(1, b"x" * 5000): b"1"})
        subtasks.restored()
        assert subtasks.content() == {key_of(1, b"large"): value, key_of(1, b"x" * 5000): b"1"}

    # -- scans --------------------------------------------------------------------------------------------------

    def test_a_scan_has_the_keys_of_its_prefix_in_order(self, store: KeyedStateBackend) -> None:
        entries = {key_of(g, rest): b"of " + rest for g in (0, 1, 2, 255, 256) for rest in _EDGES}
        store.write(dict(reversed(entries.items())))
        for prefix in (b"", b"\0", *entries, key_of(1, b"none"), b"\xff\xff"):
            wanted = sorted((k, v) for k, v in entries.items() if k.startswith(prefix))
            assert list(store.scan(prefix)) == wanted

    def test_a_range_has_its_lower_end_and_not_its_upper_one(self, store: KeyedStateBackend) -> None:
        entries = {key_of(g, rest): rest for g in (0, 1, 256) for rest in _EDGES}
        store.write(entries)
        bounds = [b"", *sorted(entries), key_of(2), b"\xff\xff\xff"]
        for lower in bounds:
            for upper in [*bounds[::3], None]:
                wanted = [k for k in sorted(entries) if lower <= k and (upper is None or k < upper)]
                assert [k for k, _ in store.scan_range(lower, upper)] == wanted

    def test_a_scan_does_not_see_what_is_written_after_its_start(self, store: KeyedStateBackend) -> None:
        before = {key_of(1, bytes([n])): b"old" for n in range(0, 100, 2)}
        store.write(before)
        scan, untouched = store.scan(key_of(1)), store.scan_range(key_of(1), key_of(2))
        first = next(scan)
        store.write({key_of(1, bytes([n])): b"new" for n in range(100)} | {key_of(1, b"\x04"): None})
        assert dict([first, *scan]) == before == dict(untouched)

    def test_the_bound_of_a_scan_lasts_as_long_as_the_scan(self, store: KeyedStateBackend) -> None:
        """A native binding may keep a pointer into the bounds that it received."""
        store.write({key_of(n): b"" for n in range(GROUPS)})
        scans = [store.scan_range(key_of(n), key_of(n + 3)) for n in range(GROUPS - 3)]
        gc.collect()
        filler = [bytes([n % 256]) * 2 for n in range(5000)]
        found = [[k for k, _ in scan] for scan in scans]
        assert filler and found == [[key_of(n + i) for i in range(3)] for n in range(GROUPS - 3)]

    def test_scans_between_writes_agree_with_a_dictionary(self, store: KeyedStateBackend) -> None:
        dice, model = random.Random(5), dict[bytes, bytes]()
        for _ in range(120):
            keys = [key_of(dice.randrange(4), dice.randbytes(1)) for _ in range(dice.choice([1, 2, 60]))]
            changes = {k: None if dice.random() < 0.4 else dice.randbytes(2) for k in keys}
            store.write(changes)
            model.update({k: v for k, v in changes.items() if v is not None})
            for key in [k for k, v in changes.items() if v is None]:
                model.pop(key, None)
            lower, upper = sorted(key_of(dice.randrange(4), dice.randbytes(1)) for _ in range(2))
            assert list(store.scan_range(lower, upper)) == sorted(
                (k, v) for k, v in model.items() if lower <= k < upper
            )
        assert dict(store.scan(b"")) == model

    # -- snapshots ----------------------------------------------------------------------------------------------

    def test_an_empty_store_is_restored_empty(self, subtasks: OperatorSubtasks) -> None:
        subtasks.open()
        subtasks.restored()
        assert subtasks.content() == {}
        subtasks.write({key_of(1): b"1"})
        subtasks.restored()
        subtasks.write({key_of(1): None})
        subtasks.restored()
        assert subtasks.content() == {}

    def test_a_snapshot_has_only_what_was_written_before_its_barrier(self, subtasks: OperatorSubtasks) -> None:
        store = subtasks.open()
        store.write({key_of(1): b"1", key_of(2): b"2"})
        states = subtasks.snapshot()
        store.write({key_of(1): None, key_of(3): b"3"})
        subtasks.close()
        subtasks.open(states)
        assert subtasks.content() == {key_of(1): b"1", key_of(2): b"2"}

    def test_every_older_snapshot_can_be_restored(self, subtasks: OperatorSubtasks) -> None:
        dice = random.Random(3)
        subtasks.open()
        kept: list[tuple[list[SubtaskState], dict[bytes, bytes]]] = []
        for number in range(6):
            subtasks.write(_changes(dice, 40))
            kept.append((subtasks.snapshot(), subtasks.content()))
            if number == 3:
                subtasks.restored()
        subtasks.close()
        for states, content in reversed(kept):
            subtasks.open(states)
            assert subtasks.content() == content
            subtasks.close()
        # Continuing from an older snapshot does not change the newer ones.
        subtasks.open(kept[1][0])
        subtasks.write(_changes(dice, 40))
        subtasks.snapshot()
        subtasks.close()
        subtasks.open(kept[5][0])
        assert subtasks.content() == kept[5][1]

    def test_a_store_accepts_writes_after_a_snapshot(self, subtasks: OperatorSubtasks) -> None:
        dice = random.Random(4)
        subtasks.open()
        for _ in range(4):
            subtasks.write(_changes(dice, 30))
            states, content = subtasks.snapshot(), subtasks.content()
        subtasks.close()
        subtasks.open(states)
        assert subtasks.content() == content

    def test_a_snapshot_without_a_change_restores_the_same(self, subtasks: OperatorSubtasks) -> None:
        subtasks.open()
        subtasks.write(_changes(random.Random(6), 30))
        first, content = subtasks.snapshot(), subtasks.content()
        second = subtasks.snapshot()
        subtasks.restored()
        third = subtasks.restored()
        for states in (first, second, third):
            subtasks.close()
            subtasks.open(states)
            assert subtasks.content() == content

    def test_a_crash_between_snapshot_and_commit_leaves_the_one_before(self, subtasks: OperatorSubtasks) -> None:
        dice = random.Random(8)
        subtasks.open(parallelism=2)
        subtasks.write(_changes(dice, 100))
        committed, content = subtasks.snapshot(), subtasks.content()
        subtasks.write(_changes(dice, 100))
        subtasks.snapshot()
        # A process that is killed closes nothing.
        dead, subtasks.stores = subtasks.stores, []
        for parallelism in (2, 3):
            subtasks.open(committed, parallelism)
            assert subtasks.content() == content
            subtasks.write(_changes(dice, 50))
            after, now = subtasks.snapshot(), subtasks.content()
            subtasks.close()
            subtasks.open(after, parallelism)
            assert subtasks.content() == now
            subtasks.close()
        for store in dead:
            store.close()

    def test_nothing_that_is_stored_is_ever_changed(self, subtasks: OperatorSubtasks) -> None:
        dice = random.Random(9)
        subtasks.open()
        seen: dict[str, bytes] = {}
        for _ in range(4):
            subtasks.write(_changes(dice, 50))
            subtasks.restored()
            stored = {blob.key: subtasks.storage.get(blob.key) for blob in subtasks.storage.list("")}
            assert seen.items() <= stored.items()
            seen = stored

    # -- key groups ---------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("chain", [(1, 3, 5, 2), (2, GROUPS, 1), (3, 2, 3), (4, 4)])
    def test_rescaling_keeps_every_key_in_one_place(self, subtasks: OperatorSubtasks, chain: Sequence[int]) -> None:
        dice = random.Random(10)
        subtasks.open(parallelism=chain[0])
        for parallelism in (*chain[1:], chain[-1]):
            subtasks.write(_changes(dice, 200))
            content = subtasks.content()
            subtasks.restored(parallelism)
            assert subtasks.content() == content

    def test_a_rescaled_store_without_a_change_is_a_snapshot_of_its_own(self, subtasks: OperatorSubtasks) -> None:
        subtasks.open(parallelism=2)
        subtasks.write({key_of(g): bytes([g]) for g in range(GROUPS)})
        subtasks.restored(3)
        subtasks.restored(3)
        assert subtasks.content() == {key_of(g): bytes([g]) for g in range(GROUPS)}

    def test_what_was_removed_stays_removed_when_its_neighbour_comes(self, subtasks: OperatorSubtasks) -> None:
        subtasks.open(parallelism=1)
        subtasks.write({key_of(g): b"old" for g in range(GROUPS)})
        subtasks.restored(2)
        subtasks.write({key_of(g): None for g in range(GROUPS // 2)})
        subtasks.restored(1)
        assert subtasks.content() == {key_of(g): b"old" for g in range(GROUPS // 2, GROUPS)}

    def test_subtasks_without_state_take_part(self, subtasks: OperatorSubtasks) -> None:
        subtasks.open(parallelism=4)
        subtasks.write({key_of(0): b"only"})
        subtasks.restored(2)
        subtasks.restored(5)
        assert subtasks.content() == {key_of(0): b"only"}

    # -- the end ------------------------------------------------------------------------------------------------

    def test_a_closed_store_leaves_no_working_files(self, subtasks: OperatorSubtasks, tmp_path: Path) -> None:
        subtasks.open().write({key_of(1): b"1"})
        subtasks.snapshot()
        subtasks.close()
        assert list(tmp_path.glob("host-*/work-*")) == []


def _changes(dice: random.Random, number: int) -> dict[bytes, bytes | None]:
    """Returns random changes over all key groups: some entries set, some removed."""
    keys = [key_of(dice.randrange(GROUPS), dice.randbytes(1)) for _ in range(number)]
    return {k: None if dice.random() < 0.3 else dice.randbytes(dice.randrange(50)) for k in keys}


class _IterationFailed(Exception):
    """The error of `_FailingChanges`."""


class _FailingChanges(Mapping[bytes, bytes | None]):
    """Changes whose iteration fails after the first."""

    def __init__(self, changes: dict[bytes, bytes | None]) -> None:
        self._changes = changes

    def __len__(self) -> int:
        return len(self._changes)

    def __iter__(self) -> Iterator[bytes]:
        yield next(iter(self._changes))
        raise _IterationFailed

    def __getitem__(self, key: bytes) -> bytes | None:
        return self._changes[key]
