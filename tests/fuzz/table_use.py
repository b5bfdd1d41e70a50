"""Use of RocksDB stores whose files passed the check, as a task would use them: a crash or a wait is the failure.

``python -m tests.fuzz.table_use`` reads folders from its input, and prints each folder after its use. One process uses
many stores, because starting a process for each would take an hour for 100,000 of them.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rocksdict import BottommostLevelCompaction, CompactOptions, Rdict, ReadOptions

from stateflow.config.state_settings import RocksDBSettings
from stateflow.state.backends.rocksdb.options import rocksdb_options
from stateflow.state.backends.rocksdb.probe_program import read_samples
from tests.fuzz.corpus import KEYS

ROOT = Path(__file__).resolve().parents[2]


def use_all(folders: Sequence[Path]) -> None:
    """Uses the stores in a child process; fails when that crashes or hangs."""
    names = "\n".join(map(str, folders))
    command = [sys.executable, "-m", "tests.fuzz.table_use"]
    ended = subprocess.run(command, cwd=ROOT, input=names, text=True, capture_output=True, timeout=120, check=False)
    used = len(ended.stdout.split())
    assert (ended.returncode, used) == (0, len(folders)), (folders[used], ended.stderr[-1000:])


def _use(folder: str) -> None:
    """Looks up, iterates and compacts a store; errors of RocksDB are expected.

    Keys in another order than RocksDB's can make the loop over samples endless: its process has a limit of CPU time.
    """
    with contextlib.suppress(Exception):
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.1)
        read_samples(folder)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    options = rocksdb_options(RocksDBSettings(write_buffer_bytes=1 << 20, block_cache_bytes=1 << 20))
    store = Rdict(folder, options=options)
    for key in KEYS:
        with contextlib.suppress(Exception):
            store.get(key)
            found = store.iter(ReadOptions())
            found.seek(key + b"x")
            if found.valid():
                found.next()
    with contextlib.suppress(Exception):
        list(store.items())
    everything = CompactOptions()
    everything.set_bottommost_level_compaction(BottommostLevelCompaction.force_optimized())
    with contextlib.suppress(Exception):
        store.compact_range(None, None, everything)
    store.close()


def _stop(*_: object) -> None:
    raise TimeoutError


if __name__ == "__main__":
    signal.signal(signal.SIGVTALRM, _stop)
    for each in sys.stdin.read().split():
        with contextlib.suppress(Exception):
            _use(each)
        print(each, flush=True)
