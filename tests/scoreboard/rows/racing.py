"""Drivers that race for a job, and writers that race for a name."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from stateflow.failpoints import NAMES
from stateflow.storage import MemoryStorage, PosixStorage, PutResult, Storage, open_storage
from tests.scoreboard.row import Round, Row, Tier
from tests.scoreboard.rows.killed_drivers import box_of, check
from tests.servers.running import s3_server
from tests.support import root_files
from tests.support.job_fixture import ASKED, BESIDE
from tests.support.processes import Ended, wait_for

_STOPS = sorted(NAMES.keys() - ASKED - BESIDE - {"start.seeded", "claim.before", "run.end"})
_RACERS, _RACES = 8, 50


def _play_stopped(round_: Round) -> int:
    """One is stopped by SIGSTOP at a step, another goes through, and the first goes on."""
    dice = random.Random(round_.seed)
    point = _STOPS[round_.seed % len(_STOPS)]
    with box_of(round_) as box:
        # With this backend a run passes each of the steps.
        box.settings = {**box.settings, "checkpoints__collect_every": 1, "state__backend": "rocksdb"}
        chain = root_files.Chain(box.root)
        box.deliver(30)
        if dice.random() < 0.5:
            box.finish()
        box.deliver(110)
        stopped = box.start(f"{point}:1:stop")
        stopped.wait_stopped(chain.look)
        others = [box.start() for _ in range(dice.choice([1, 1, 2]))]
        ended = [other.wait(chain.look) for other in others]
        assert any(e.code == 0 for e in ended) and all(_is_win_or_fenced(e) for e in ended), ended
        stopped.resume()
        late = stopped.wait(chain.look)
        assert (late.code, late.error.code) == (3, "fenced"), f"{point}: {late}"
        check(box, chain)
    return 1


def _play_at_once(round_: Round) -> int:
    """Two or three at once; each of them begins when the log has some more entries."""
    dice = random.Random(round_.seed)
    with box_of(round_) as box:
        chain = root_files.Chain(box.root)
        box.deliver(400)
        runs = [box.start()]
        for _ in range(dice.choice([1, 2])):
            entries = len(chain.seen) + dice.randrange(8)
            _wait_for(lambda n=entries: len(chain.seen) >= n or runs[0].poll() is not None, chain)  # type: ignore[misc]
            runs.append(box.start())
        ended = [run.wait(chain.look) for run in runs]
        assert any(e.code == 0 for e in ended), ended
        assert all(_is_win_or_fenced(e) for e in ended), ended
        check(box, chain)
    return len(runs) - 1


def _wait_for(condition: Callable[[], bool], chain: root_files.Chain) -> None:
    def holds() -> bool:
        chain.look()
        return condition()

    wait_for(holds, lambda: "a run to get on")


def _is_win_or_fenced(ended: Ended) -> bool:
    return ended.code == 0 or (ended.code == 3 and ended.error.code == "fenced")


def _play_names(round_: Round) -> int:
    with _storages(round_) as storages:
        for storage in storages:
            for number in range(_RACES):
                _race(storage, f"log/{round_.seed}-{number}")
    return _RACES * len(storages)


@contextmanager
def _storages(round_: Round) -> Iterator[list[Storage]]:
    folder: Path = round_.folder
    with s3_server(folder / "s3", "bucket") as variables, patch.dict("os.environ", variables):
        yield [PosixStorage(folder / "posix"), MemoryStorage(), open_storage("s3://bucket/races")]


def _race(storage: Storage, key: str) -> None:
    bids = [f"racer {n}".encode() * 500 for n in range(_RACERS)]
    with ThreadPoolExecutor(_RACERS) as pool:
        results = list(pool.map(lambda bid: storage.put_new(key, bid), bids))
    winners = [bid for bid, result in zip(bids, results, strict=True) if result is PutResult.CREATED]
    assert len(winners) == 1, f"{len(winners)} winners in {storage.uri}"
    assert storage.get(key) == winners[0], f"other bytes than the winner's in {storage.uri}"


ROWS = [
    Row(
        6,
        "stopped-drivers",
        "a driver stopped by SIGSTOP at a named step while one or two others go through, then resumed",
        "as for killed-drivers; the late one reports that it is fenced",
        _play_stopped,
        {Tier.SLICE: 4, Tier.HALF_HOUR: 50, Tier.NIGHTLY: 600},
        plant="no-token",
        plant_rounds=len(_STOPS),
    ),
    Row(
        6,
        "drivers-at-once",
        "two or three drivers at once (drivers too many)",
        "as for killed-drivers; who loses is fenced",
        _play_at_once,
        {Tier.SLICE: 2, Tier.HALF_HOUR: 20, Tier.NIGHTLY: 300},
        plant="no-fence",
        plant_rounds=20,
    ),
    Row(
        8,
        "names",
        f"{_RACERS} writers race for a name (POSIX, memory, S3 server)",
        "exactly one is told that it won, and its bytes are stored",
        _play_names,
        {Tier.SLICE: 1, Tier.HALF_HOUR: 4, Tier.NIGHTLY: 40},
        plant="check-then-write",
        plant_rounds=3,
    ),
]
