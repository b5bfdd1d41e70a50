"""Programs that use state of every kind, beside plain dictionaries."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.scoreboard.row import Round, Row, Tier
from tests.state.kinds.test_state_kinds_model import Life
from tests.support.stores import RocksStoreFixture

_EXAMPLES = 25


def _play(round_: Round) -> int:
    class Lives(Life):
        stores = RocksStoreFixture(round_.folder) if round_.seed % 5 == 0 else Life.stores

    few = settings(
        max_examples=_EXAMPLES,
        stateful_step_count=20,
        deadline=None,
        database=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
        phases=[Phase.generate],
    )
    run_state_machine_as_test(seed(round_.seed)(Lives), settings=few)
    return _EXAMPLES


ROWS = [
    Row(
        15,
        "states",
        "programs with value, list, map, reducing and aggregating state, namespaces, time to live, "
        "snapshots and restores",
        "each answer is that of plain dictionaries; what expires is gone in the end",
        _play,
        {Tier.SLICE: 2, Tier.HALF_HOUR: 20, Tier.NIGHTLY: 800},
        plant="kept-entry",
    )
]
