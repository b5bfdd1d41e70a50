"""Savepoints that an attacker has forged, and a job whose users meet them."""

from __future__ import annotations

from tests.recovery.attacked_job import AttackedJob
from tests.recovery.forged_savepoints import FORGERIES
from tests.scoreboard.row import Round, Row

_EACH = 6
_BACKENDS: dict[str, dict[str, object]] = {
    "rocksdb": {"state__backend": "rocksdb"},
    "filesystem": {"state__backend": "filesystem", "state__inline_below_bytes": 1},
}


@Row(
    25,
    "hostile-savepoints",
    plays=(0, 25, 500),
    mutants=(
        "unchecked-stores",
        "verify-opens-nothing",
        "trusted-numbers",
        "retried-forgery",
        "followed-links",
        "followed-folders",
        "linked-strangers",
        "keys-to-anywhere",
    ),
    within=15,
)
def test_a_forged_savepoint_does_no_harm(round_: Round) -> int:
    """A savepoint is forged by a user who may write it, with hashes that fit: numbers of RocksDB's manifest, blocks of
    its files, blocks of hash maps, documents, sizes, paths that lead out of it, links, FIFOs, files of another user.

    Each command succeeds or fails with one error that no retry repeats; no process dies, nothing outside of the
    savepoint is read or changed, a refused restore changes nothing, and the job continues from its other savepoint.
    """
    backend = ["rocksdb", "rocksdb", "filesystem"][round_.seed % 3]
    attacked = AttackedJob(round_.folder, _BACKENDS[backend], round_.rng)
    possible = [forgery for forgery in FORGERIES if forgery.needs in ("", backend)]
    try:
        for forgery in round_.rng.sample(possible, _EACH):
            attacked.attack(forgery)
        attacked.check()
    finally:
        attacked.job.end_all()
    return _EACH
