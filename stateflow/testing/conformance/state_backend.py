"""What every keyed state backend must do, as tests that anybody can run over a backend of their own.

Subclass `StateBackendConformance` in a test module and give it a fixture that opens stores::

    import pytest
    from stateflow.testing.state_backend import StateBackendConformance

    class TestMyBackend(StateBackendConformance):
        @pytest.fixture
        def opener(self):
            def open_store(folder, cache, base):     # a folder that does not exist; a HostCache; a Base
                return MyBackend(...)
            return open_store

A backend whose parts are marked with another name than the settings know gives it as `backend`.
``pytest.register_assert_rewrite("stateflow.testing.state_backend", "stateflow.testing.fleet")`` in a conftest makes
failures show their values.
"""

from __future__ import annotations

import gc
import random  # noqa: TID251 - seeded dice for tests; nothing is decided by it
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from stateflow.state.backend import KeyedStateBackend
from stateflow.state.handles import SubtaskState
from stateflow.testing.fleet import GROUPS, Fleet, Opener, key_of

__all__ = ["GROUPS", "Fleet", "Opener", "StateBackendConformance", "key_of"]

_EDGES = (b"", b"\0", b"\0\0", b"\0\xff", b"a", b"a\0", b"a\0b", b"a\xff", b"ab", b"b", b"\xff", b"\xff\xff")


class StateBackendConformance:
    """The promises of `stateflow.state.backend.KeyedStateBackend`, one by one."""

    backend = "rocksdb"
    """What the manifest would call it."""

    @pytest.fixture
    def fleet(self, opener: Opener, tmp_path: Path) -> Iterator[Fleet]:
        fleet = Fleet(opener, tmp_path, self.backend)
        yield fleet
        fleet.close()

    @pytest.fixture
    def store(self, fleet: Fleet) -> KeyedStateBackend:
        return fleet.open()

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
        with pytest.raises(_Broken):
            store.write(_Breaking({key_of(1): b"new", key_of(2): b"new"}))
        assert list(store.scan(b"")) == [(key_of(1), b"old")]

    @pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 3 << 20])
    def test_a_value_may_be_large(self, fleet: Fleet, size: int) -> None:
        value = random.Random(size).randbytes(size)
        fleet.open().write({key_of(1, b"large"): value, key_of(1, b"x" * 5000): b"1"})
        fleet.restored()
        assert fleet.content() == {key_of(1, b"large"): value, key_of(1, b"x" * 5000): b"1"}

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

    def test_a_scan_does_not_see_what_is_written_after_it_began(self, store: KeyedStateBackend) -> None:
        before = {key_of(1, bytes([n])): b"old" for n in range(0, 100, 2)}
        store.write(before)
        scan, untouched = store.scan(key_of(1)), store.scan_range(key_of(1), key_of(2))
        first = next(scan)
        store.write({key_of(1, bytes([n])): b"new" for n in range(100)} | {key_of(1, b"\x04"): None})
        assert dict([first, *scan]) == before == dict(untouched)

    def test_the_bound_of_a_scan_lasts_as_long_as_the_scan(self, store: KeyedStateBackend) -> None:
        """A binding may point into what it was given."""
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

    def test_an_empty_store_is_restored_empty(self, fleet: Fleet) -> None:
        fleet.open()
        fleet.restored()
        assert fleet.content() == {}
        fleet.write({key_of(1): b"1"})
        fleet.restored()
        fleet.write({key_of(1): None})
        fleet.restored()
        assert fleet.content() == {}

    def test_a_snapshot_has_what_was_written_before_it_and_nothing_after(self, fleet: Fleet) -> None:
        store = fleet.open()
        store.write({key_of(1): b"1", key_of(2): b"2"})
        states = fleet.snapshot()
        store.write({key_of(1): None, key_of(3): b"3"})
        fleet.close()
        fleet.open(states)
        assert fleet.content() == {key_of(1): b"1", key_of(2): b"2"}

    def test_every_older_snapshot_can_be_gone_back_to(self, fleet: Fleet) -> None:
        dice = random.Random(3)
        fleet.open()
        kept: list[tuple[list[SubtaskState], dict[bytes, bytes]]] = []
        for number in range(6):
            fleet.write(_changes(dice, 40))
            kept.append((fleet.snapshot(), fleet.content()))
            if number == 3:
                fleet.restored()
        fleet.close()
        for states, content in reversed(kept):
            fleet.open(states)
            assert fleet.content() == content
            fleet.close()
        # Going on from an older one does not harm the newer ones.
        fleet.open(kept[1][0])
        fleet.write(_changes(dice, 40))
        fleet.snapshot()
        fleet.close()
        fleet.open(kept[5][0])
        assert fleet.content() == kept[5][1]

    def test_a_store_goes_on_after_a_snapshot(self, fleet: Fleet) -> None:
        dice = random.Random(4)
        fleet.open()
        for _ in range(4):
            fleet.write(_changes(dice, 30))
            states, content = fleet.snapshot(), fleet.content()
        fleet.close()
        fleet.open(states)
        assert fleet.content() == content

    def test_a_snapshot_without_a_change_restores_the_same(self, fleet: Fleet) -> None:
        fleet.open()
        fleet.write(_changes(random.Random(6), 30))
        first, content = fleet.snapshot(), fleet.content()
        second = fleet.snapshot()
        fleet.restored()
        third = fleet.restored()
        for states in (first, second, third):
            fleet.close()
            fleet.open(states)
            assert fleet.content() == content

    def test_a_crash_between_snapshot_and_commit_leaves_the_one_before(self, fleet: Fleet) -> None:
        dice = random.Random(8)
        fleet.open(parallelism=2)
        fleet.write(_changes(dice, 100))
        committed, content = fleet.snapshot(), fleet.content()
        fleet.write(_changes(dice, 100))
        fleet.snapshot()
        # Nobody closes what a dead process had open.
        dead, fleet.stores = fleet.stores, []
        for parallelism in (2, 3):
            fleet.open(committed, parallelism)
            assert fleet.content() == content
            fleet.write(_changes(dice, 50))
            after, now = fleet.snapshot(), fleet.content()
            fleet.close()
            fleet.open(after, parallelism)
            assert fleet.content() == now
            fleet.close()
        for store in dead:
            store.close()

    def test_nothing_that_is_stored_is_ever_changed(self, fleet: Fleet) -> None:
        dice = random.Random(9)
        fleet.open()
        seen: dict[str, bytes] = {}
        for _ in range(4):
            fleet.write(_changes(dice, 50))
            fleet.restored()
            stored = {blob.key: fleet.storage.get(blob.key) for blob in fleet.storage.list("")}
            assert seen.items() <= stored.items()
            seen = stored

    # -- key groups ---------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("chain", [(1, 3, 5, 2), (2, GROUPS, 1), (3, 2, 3), (4, 4)])
    def test_rescaling_keeps_every_key_in_one_place(self, fleet: Fleet, chain: Sequence[int]) -> None:
        dice = random.Random(10)
        fleet.open(parallelism=chain[0])
        for parallelism in (*chain[1:], chain[-1]):
            fleet.write(_changes(dice, 200))
            content = fleet.content()
            fleet.restored(parallelism)
            assert fleet.content() == content

    def test_a_rescaled_store_without_a_change_is_a_snapshot_of_its_own(self, fleet: Fleet) -> None:
        fleet.open(parallelism=2)
        fleet.write({key_of(g): bytes([g]) for g in range(GROUPS)})
        fleet.restored(3)
        fleet.restored(3)
        assert fleet.content() == {key_of(g): bytes([g]) for g in range(GROUPS)}

    def test_what_was_removed_stays_removed_when_its_neighbour_comes(self, fleet: Fleet) -> None:
        fleet.open(parallelism=1)
        fleet.write({key_of(g): b"old" for g in range(GROUPS)})
        fleet.restored(2)
        fleet.write({key_of(g): None for g in range(GROUPS // 2)})
        fleet.restored(1)
        assert fleet.content() == {key_of(g): b"old" for g in range(GROUPS // 2, GROUPS)}

    def test_subtasks_without_state_take_part(self, fleet: Fleet) -> None:
        fleet.open(parallelism=4)
        fleet.write({key_of(0): b"only"})
        fleet.restored(2)
        fleet.restored(5)
        assert fleet.content() == {key_of(0): b"only"}

    # -- the end ------------------------------------------------------------------------------------------------

    def test_a_closed_store_leaves_no_working_files(self, fleet: Fleet, tmp_path: Path) -> None:
        fleet.open().write({key_of(1): b"1"})
        fleet.snapshot()
        fleet.close()
        assert list(tmp_path.glob("host-*/work-*")) == []


def _changes(dice: random.Random, number: int) -> dict[bytes, bytes | None]:
    """Some entries set and some removed, over all key groups."""
    keys = [key_of(dice.randrange(GROUPS), dice.randbytes(1)) for _ in range(number)]
    return {k: None if dice.random() < 0.3 else dice.randbytes(dice.randrange(50)) for k in keys}


class _Broken(Exception):
    """What `_Breaking` raises."""


class _Breaking(Mapping[bytes, bytes | None]):
    """Changes of which only the first can be had."""

    def __init__(self, changes: dict[bytes, bytes | None]) -> None:
        self._changes = changes

    def __len__(self) -> int:
        return len(self._changes)

    def __iter__(self) -> Iterator[bytes]:
        yield next(iter(self._changes))
        raise _Broken

    def __getitem__(self, key: bytes) -> bytes | None:
        return self._changes[key]
