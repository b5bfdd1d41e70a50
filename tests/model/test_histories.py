"""20,000 random histories of the protocol break no rule, and what they must have seen is counted."""

from __future__ import annotations

import pytest

from tests.model.history import explore
from tests.model.plan import VERDICTS

_CHUNK = 2_500
_CHUNKS, _QUICK_CHUNKS = 8, 2
"""`make test` plays the quick chunks; `make test-all` and the scoreboard play all."""

_AT_LEAST = {
    "steps": 400_000,
    "commits": 8_000,
    "fenced": 4_500,
    "deletions": 50_000,
    "publications seen": 6_500,
    "adoptions": 100,
    "checkpoints given up": 1_000,
    "pins": 1_000,
    "unpins": 1_000,
    "retentions shortened": 1_000,
    "entries in stale slots": 300,
    "late writes landed": 500,
    "savepoints complete": 300,
    "savepoints made by runs": 15,
    "savepoints given up": 30,
    "savepoints disposed": 10,
    "requests done": 200,
    "requests withdrawn": 300,
    "stops": 50,
    "intents": 20,
    "intents to an older checkpoint": 1,
    "tables rewound (restore)": 25,
    "forks that went on": 20,
    "forks half made": 5,
} | dict.fromkeys(VERDICTS[1:], 200)
"""What so many histories must have seen, or they show nothing. A history has a bounded number of steps, and a run needs
more of them for a checkpoint since it deletes old log entries when it starts and ends."""


@pytest.mark.parametrize(
    "chunk", [*range(_QUICK_CHUNKS), *(pytest.param(n, marks=pytest.mark.slow) for n in range(_QUICK_CHUNKS, _CHUNKS))]
)
def test_no_history_breaks_a_rule(chunk: int) -> None:
    report = explore(range(chunk * _CHUNK, (chunk + 1) * _CHUNK))
    assert not report.failures, report.failures[0].story()
    assert {what: report.stats[what] for what, least in _AT_LEAST.items() if report.stats[what] < least} == {}
