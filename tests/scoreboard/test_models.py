"""Faults and programs without processes: the simulator of the protocol, and programs that use state."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.history import explore
from tests.scoreboard.row import Round, Row
from tests.testing.test_every_state import EveryHistory

_HISTORIES, _EXAMPLES = 100, 10


@Row(1, "histories", plays=(1, 200, 10000), mutants=("no-list",), within=30)
def test_no_history_breaks_a_rule(round_: Round) -> int:
    """Random interleavings of drivers, collectors and users: crashes, pauses, lost answers, late writes, in the
    simulator; each history is one fault.

    Rules I1 to I9 and the rules of the sinks hold after every step; the checker reads only the storage.
    """
    report = explore(range(round_.seed * _HISTORIES, (round_.seed + 1) * _HISTORIES))
    assert not report.failures, report.failures[0].story()
    return report.histories


@Row(15, "states", plays=(1, 20, 800), mutants=("kept-entry", "newest-first"))
def test_state_equals_plain_dictionaries(round_: Round) -> int:
    """Programs with value, list, map, reducing and aggregating state, namespaces, time to live, snapshots and restores.

    Each answer is that of plain dictionaries; expired entries are removed.
    """
    few = settings(
        max_examples=_EXAMPLES, stateful_step_count=10, deadline=None, database=None, print_blob=False,
        suppress_health_check=list(HealthCheck), verbosity=Verbosity.quiet, phases=[Phase.generate],
    )  # fmt: skip
    run_state_machine_as_test(seed(round_.seed)(EveryHistory), settings=few)
    return _EXAMPLES
