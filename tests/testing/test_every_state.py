"""Every kind of state, timer, time to live and backend over batches, restores and rescalings, against an oracle.

A history that fails is printed, shrunk, as method calls. For new histories in each run:
``HYPOTHESIS_PROFILE=nightly python -m pytest tests/testing/test_every_state.py -m slow``; failures are kept in
``.hypothesis``, and are the first examples of the next such run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from stateflow import DeadLetters, FsStateBackend, MemoryStateBackend, RocksDBStateBackend, StateTtlConfig
from stateflow.api.state_backends import StateBackend
from stateflow.errors import StateflowError, UserCodeError
from stateflow.testing import HarnessSnapshot, KeyedHarness
from tests.support.mutants import STATE, planted
from tests.testing.every_state import CELLS, INPUTS, KINDS, RULES, EveryState, Row, Rule, Seen, Step, pack
from tests.testing.oracle import Oracle, Scope, StateKey

KEYS = ("a", "b", "", "a\0")
NAMESPACES = (None, "n", "", "n\0", 0)
MAP_KEYS = ("", "x", "x\0")
Visit = tuple[str, Any, Sequence[Step]]
"""Key, namespace, and steps without the namespace."""
NO_WORD = "-"
"""Replaced by a word that no other step has."""

MEMORY = MemoryStateBackend()
FILES, INLINE = FsStateBackend(inline_below_bytes=1), FsStateBackend(inline_below_bytes=500)
INCREMENTAL, WHOLE = RocksDBStateBackend(), RocksDBStateBackend(incremental=False)
BACKENDS = (MEMORY, FILES, INLINE, MEMORY, FILES, INLINE, MEMORY, FILES, INCREMENTAL, WHOLE)
"""With frequencies: RocksDB costs ten times as much."""

words = st.just(NO_WORD)
listed = st.lists(words, max_size=3)
map_keys = st.sampled_from(MAP_KEYS)
domains = st.sampled_from(["event", "processing"])
times = st.sampled_from([0, 1, 2, 3, 4, 6, 10, 31, 110, -1, -5])
"""Relative to the time of the batch."""
steps = st.one_of(
    st.sampled_from([(kind, "value" if kind == "value" else "get") for kind in CELLS]),
    st.sampled_from([(kind, "clear") for kind in KINDS]),
    st.sampled_from([(kind, "add", NO_WORD) for kind in CELLS if kind != "value"]),
    st.sampled_from([("value", "update", NO_WORD), ("value", "update", None)]),
    st.just(("list", "add", NO_WORD)),
    st.tuples(st.just("list"), st.sampled_from(["add_all", "update"]), listed),
    st.just(("list", "get")),
    st.tuples(st.just("map"), st.just("put"), map_keys, words),
    st.tuples(st.just("map"), st.just("put_all"), st.dictionaries(map_keys, words)),
    st.tuples(st.just("map"), st.sampled_from(["get", "contains", "remove"]), map_keys),
    st.tuples(st.just("map"), st.sampled_from(["items", "keys", "values", "is_empty"])),
    st.tuples(st.just("timer"), st.sampled_from(["register", "register", "delete"]), domains, times),
    st.sampled_from([("split", "add", NO_WORD), ("split", "get"), ("union", "add", NO_WORD), ("union", "get")]),
    st.just(("rules", "items")),
)
reads = [(kind, "get") for kind in ("list", "reducing", "aggregating", "folding", "split", "union")]
reads += [("value", "value"), ("map", "items"), ("rules", "items")]
visits = st.tuples(
    st.sampled_from(KEYS),
    st.sampled_from([None, *NAMESPACES]),
    st.lists(steps | st.sampled_from(reads), min_size=2, max_size=5),
)
pushes = st.lists(visits, min_size=1, max_size=4)
filling = [
    ("value", "update", NO_WORD), ("list", "add_all", [NO_WORD, NO_WORD]),
    ("map", "put_all", dict.fromkeys(MAP_KEYS, NO_WORD)), ("reducing", "add", NO_WORD), ("aggregating", "add", NO_WORD),
    ("folding", "add", NO_WORD), ("timer", "register", "event", 30), ("timer", "register", "processing", 31),
    ("timer", "register", "event", 102), ("split", "add", NO_WORD), ("union", "add", NO_WORD),
]  # fmt: skip
"""Steps that fill every state."""
rules = st.lists(st.builds(Rule, st.sampled_from(["x", "y"]), st.integers(0, 2)), max_size=2)
ttls = st.builds(
    StateTtlConfig, st.sampled_from([timedelta(milliseconds=30), timedelta(milliseconds=100)]),
    st.sampled_from(StateTtlConfig.UpdateType), st.sampled_from(StateTtlConfig.StateVisibility),
    st.sampled_from(StateTtlConfig.TtlTimeCharacteristic), background_cleanup=st.booleans(),
    cleanup_entries=st.sampled_from([None, 1, 20]),
)  # fmt: skip
alike = st.builds(lambda ttl: dict.fromkeys(KINDS, ttl), st.none() | ttls)
declarations = st.fixed_dictionaries({kind: st.none() | ttls for kind in KINDS}) | alike
changes = st.dictionaries(st.sampled_from(KINDS), st.none() | ttls, max_size=3) | alike
backends = st.sampled_from(BACKENDS)
parallelisms = st.sampled_from([1, 2, 3, 8])
durations = st.sampled_from([30, 1, 29, 31, 70, 100])
passing = st.tuples(durations, st.just(0)) | st.tuples(st.just(0), durations) | st.tuples(durations, durations)
"""In event time and in processing time."""


@dataclass(frozen=True)
class Kept:
    snapshot: HarnessSnapshot
    oracle: Oracle


class EveryHistory(RuleBasedStateMachine):
    """Batches, time, failures, snapshots, restores: after each, the results and the state are those of the oracle."""

    harness: KeyedHarness
    compact_at_files = 2

    def __init__(self) -> None:
        super().__init__()
        self.words = 0
        self.checks = 0

    @initialize(
        declared=declarations, default=st.sampled_from([None, "default"]), letters=st.booleans(),
        filled=st.sampled_from([True, True, True, False]), parallelism=parallelisms, backend=backends,
    )  # fmt: skip
    def begin(
        self,
        declared: Mapping[str, StateTtlConfig | None],
        default: str | None,
        letters: bool,
        filled: bool,
        parallelism: int,
        backend: StateBackend,
    ) -> None:
        self.letters = letters
        self.oracle = Oracle(declared, default)
        self.oracle.rescale(parallelism)
        self._use(backend)
        self.harness = KeyedHarness(
            EveryState(declared, default),
            *INPUTS,
            output=Seen,
            backend=self.backend,
            parallelism=parallelism,
            on_error=DeadLetters(1000) if letters else "fail",
            max_parallelism=8,
            rocksdb__compact_at_files=self.compact_at_files,
        )
        if filled:
            self.push([(key, namespace, filling) for key in KEYS for namespace in (None, "n")], [Rule("x", 1)])
        self.kept = [Kept(self.harness.snapshot(), deepcopy(self.oracle))]

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self.harness.close()

    # -- rules --------------------------------------------------------------------------------------------------

    @rule(pushed=pushes, rules=rules)
    def push(self, pushed: Sequence[Visit], rules: list[Rule]) -> None:
        rows = self._rows(pushed)
        self.oracle.batch(self.harness.push_both(rows, rules), rows, rules)
        self._check_state(*pushed[0][:2])

    @rule(pushed=pushes, failing=st.integers(0, 3))
    def push_with_a_row_that_fails(self, pushed: list[Visit], failing: int) -> None:
        failing %= len(pushed)
        key, namespace, drawn = pushed[failing]
        visit = (key, namespace, [*drawn, ("split", "add", NO_WORD), ("fail", "")])
        rows = self._rows([*pushed[:failing], visit, *pushed[failing + 1 :]])
        if self.letters:
            before = len(self.harness.dead_letters)
            seen = self.harness.push_both(rows, [])
            assert len(self.harness.dead_letters) == before + 1
            del rows[failing]
            self.oracle.batch(seen, rows)
        else:
            with pytest.raises(UserCodeError, match="Broken"):
                self.harness.push_both(rows, [Rule("x", 7)])
        self._check_state(*pushed[0][:2])

    @rule(durations=passing, pushed=st.just([]) | pushes)
    def time_passes(self, durations: tuple[int, int], pushed: list[Visit]) -> None:
        in_event_time, in_processing_time = durations
        if in_event_time:
            first = self.oracle.watermark is None
            self.oracle.watermark = (self.oracle.watermark or 0) + in_event_time
            self.oracle.batch(self.harness.advance_watermark(self.oracle.watermark))
            if first:
                self._settle()
        if in_processing_time:
            self.oracle.processing_time += in_processing_time
            self.oracle.batch(self.harness.advance_processing_time(self.oracle.processing_time))
        self._push_or_check(pushed)

    @rule()
    def drain(self) -> None:
        self.oracle.batch(self.harness.drain(), until=1 << 62)
        self._check_state()

    @rule()
    def read_everything(self) -> None:
        """Afterwards no expired entry is stored."""
        scopes = sorted({state_key[1:] for state_key in self.oracle.entries}, key=repr)
        rows = self._rows([(key, namespace, reads) for key, namespace in scopes])
        self.oracle.batch(self.harness.push_both(rows, []), rows)
        self.oracle.check_hashes(self.harness.state_entries())

    @rule()
    def snapshot(self) -> None:
        self.kept = [*self.kept[-2:], Kept(self.harness.snapshot(), deepcopy(self.oracle))]

    @rule(
        back=st.sampled_from([0, 0, 0, 1, 2, 3]), parallelism=st.none() | parallelisms, changes=st.just({}) | changes,
        pushed=st.just([]) | pushes, backend=backends,
    )  # fmt: skip
    def restore(
        self,
        back: int,
        pushed: list[Visit],
        parallelism: int | None,
        changes: Mapping[str, StateTtlConfig | None],
        backend: StateBackend,
    ) -> None:
        """Restores the newest state, or a snapshot that was kept."""
        now = Kept(self.harness.snapshot(), self.oracle)
        before = [now, *reversed(self.kept)][min(back, len(self.kept))]
        self.oracle = deepcopy(before.oracle)
        self._use(backend)
        ttls = {**self.oracle.ttls, **changes}
        parallelism = parallelism or self.oracle.parallelism
        function = EveryState(ttls, self.oracle.default) if changes else None
        restored = KeyedHarness.restore(before.snapshot, function, backend=self.backend, parallelism=parallelism)
        self.harness.close()
        self.harness = restored
        self.oracle.rescale(parallelism)
        if changes:
            self.oracle.declare(ttls)
            self._settle()
        self._push_or_check(pushed)

    # -- steps and checks ---------------------------------------------------------------------------------------

    def _use(self, backend: StateBackend) -> None:
        self.backend = backend
        self.oracle.full = backend != INCREMENTAL

    def _push_or_check(self, pushed: list[Visit]) -> None:
        if pushed:
            self.push(pushed, [])
        else:
            self._check_state()

    def _settle(self) -> None:
        """A batch in which the function is opened: new times to live begin then."""
        rows = self._rows([(KEYS[0], None, [])])
        self.oracle.batch(self.harness.push_both(rows, []), rows)

    def _rows(self, visits: Sequence[Visit]) -> list[Row]:
        steps = [[(ns, *self._step((key, ns), *step)) for step in drawn] for key, ns, drawn in visits]
        return [Row(visit[0], number, pack(of)) for number, (visit, of) in enumerate(zip(visits, steps, strict=True))]

    def _step(self, scope: Scope, about: str, verb: str, *arguments: Any) -> Step:
        if about == "timer":
            return (about, verb, arguments[0], self._time_of(scope, verb, *arguments))
        return (about, verb, *map(self._worded, arguments))

    def _time_of(self, scope: Scope, verb: str, domain: str, offset: int) -> int:
        """A deletion mostly has the time of a pending timer."""
        pending = sorted(time for of, time in self.oracle.timers.get(scope, ()) if of == domain)
        if verb == "delete" and pending:
            return pending[offset % len(pending)]
        base = self.oracle.watermark if domain == "event" else self.oracle.processing_time
        return (base or 0) + offset

    def _worded(self, given: Any) -> Any:
        if isinstance(given, list):
            return [self._worded(each) for each in given]
        if isinstance(given, dict):
            return {key: self._worded(given[key]) for key in sorted(given)}
        if given != NO_WORD:
            return given
        self.words += 1
        return f"w{self.words}"

    def _check_state(self, key: str = KEYS[0], namespace: Any = None) -> None:
        """Checks all stored state, and what a function would read in one scope."""
        # With stores on disk, a check copies and opens every store.
        number, rest = divmod(self.checks, 4 if self.backend in (INCREMENTAL, WHOLE) else 1)
        self.checks += 1
        if rest:
            return
        self.oracle.check_timers(self.harness.timers())
        self.oracle.check_hashes(self.harness.state_entries())
        split, union = self.harness.operator_state("split"), self.harness.operator_state("union")
        self.oracle.check_operator_state(split, union, self.harness.broadcast_state(RULES))
        kind = KINDS[(number + self.words) % len(KINDS)]
        state_key: StateKey = (kind, key, namespace)
        self.oracle.check_read(state_key, self.harness.state(kind, key, namespace=namespace))


def test_restores_at_another_parallelism_and_back_change_no_operator_state() -> None:
    """Without a batch in between; found by `test_state_equals_the_oracle_over_thousands_of_histories`."""
    history = EveryHistory()
    backend = MemoryStateBackend()
    history.begin(dict.fromkeys(KINDS), None, False, True, 2, backend)
    for parallelism in (1, 2):
        history.restore(0, [], parallelism, {}, backend)
    history.teardown()


def _late_timers() -> None:
    ttl = StateTtlConfig(
        timedelta(milliseconds=30), ttl_time_characteristic=StateTtlConfig.TtlTimeCharacteristic.EventTime
    )
    for late in (3, 7, 11):
        history = EveryHistory()
        history.begin({**dict.fromkeys(KINDS), "reducing": ttl}, None, False, False, 1, MEMORY)
        history.time_passes((100, 0), [])
        history.push([(KEYS[0], None, [("reducing", "add", NO_WORD), ("timer", "register", "event", -late)])], [])
        history.time_passes((29, 0), [])
        history.read_everything()
        history.teardown()


def test_a_late_timer_does_not_shorten_the_life_of_state() -> None:
    _late_timers()


@pytest.mark.long(reason="draws many histories")
def test_state_equals_the_oracle_over_a_sample_of_histories() -> None:
    run_state_machine_as_test(EveryHistory, settings=settings(max_examples=20, stateful_step_count=10))


@pytest.mark.slow(reason="2,000 histories")
def test_state_equals_the_oracle_over_thousands_of_histories() -> None:
    many = settings(max_examples=max(2_000, settings().max_examples), stateful_step_count=10)
    run_state_machine_as_test(EveryHistory, settings=many)


@pytest.mark.slow(reason="up to 2,000 histories for each bug")
@pytest.mark.parametrize("mistake", STATE)
def test_the_histories_detect_each_planted_mistake(mistake: str) -> None:
    with planted(mistake), pytest.raises((AssertionError, StateflowError)):
        if mistake == "shortened-life":  # Thousands of random histories may have no such timer.
            _late_timers()
        else:
            as_found = settings(max_examples=2_000, stateful_step_count=10, phases=[Phase.generate])
            run_state_machine_as_test(EveryHistory, settings=as_found)
