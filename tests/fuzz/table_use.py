"""Use of RocksDB stores that passed the checks, as a task uses them: a crash, a wait or a strange error is a failure.

``python -m tests.fuzz.table_use`` reads folders from its input, and prints each folder after its use. One process uses
many stores, because starting a process for each would take an hour for 100,000 of them.
"""

from __future__ import annotations

import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rocksdict import BottommostLevelCompaction, CompactOptions, Rdict, ReadOptions

from stateflow.config.settings import RocksDBSettings
from stateflow.process_limits import limit
from stateflow.state.backends.rocksdb.backend import rocksdb_options, to_stateflow_error
from tests.support.memory import LIMIT, MemoryPeak

KEYS = [struct.pack(">HQ", n, n) + bytes(n % 20) for n in range(100)]
"""The keys of the stores of the corpus."""
ROOT = Path(__file__).resolve().parents[2]
_MOST = 20
"""How many stores of a batch are used: each takes 0.1 s of CPU time."""
_CPU_SECONDS = 2


class StoreSamples:
    """The first stores of each batch whose files were accepted.

    Args:
        folder: of the stores; it is emptied first.
    """

    def __init__(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self._folder = folder
        self._number = 0

    def add(self, lay_out: Callable[[Path], object]) -> None:
        """Adds a store, unless there are enough.

        Args:
            lay_out: writes the store into an empty folder; raises ValueError if it cannot be opened.
        """
        if self._number < _MOST:
            folder = self._folder / str(self._number)
            folder.mkdir(parents=True)
            self._number += 1
            try:
                lay_out(folder)
            except ValueError:
                shutil.rmtree(folder)

    def use(self) -> None:
        """Opens and uses the stores in a process with limits."""
        if folders := [*self._folder.glob("*")]:
            _use_all(folders)
        # After a failure they stay.
        shutil.rmtree(self._folder, ignore_errors=True)
        self._number = 0


def _use_all(folders: list[Path]) -> None:
    names = "\n".join(map(str, folders))
    command = [sys.executable, "-m", "tests.fuzz.table_use"]
    ended = subprocess.run(command, cwd=ROOT, input=names, text=True, capture_output=True, timeout=600, check=False)
    used = len(ended.stdout.split())
    assert (ended.returncode, used) == (0, len(folders)), (folders[used], ended.returncode, ended.stderr[-1000:])


def _use(folder: str) -> None:
    """Looks up, iterates and compacts a store."""
    options = rocksdb_options(RocksDBSettings(write_buffer_bytes=1 << 20, block_cache_bytes=1 << 20))
    with _errors_with_a_code(folder):
        store = Rdict(folder, options=options)
        for key in KEYS:
            with _errors_with_a_code(folder):
                store.get(key)
                found = store.iter(ReadOptions())
                found.seek(key + b"x")
                if found.valid():
                    found.next()
                found.status()
        with _errors_with_a_code(folder):
            list(store.items())
        everything = CompactOptions()
        everything.set_bottommost_level_compaction(BottommostLevelCompaction.force_optimized())
        with _errors_with_a_code(folder):
            store.compact_range(None, None, everything)
        store.close()


@contextmanager
def _errors_with_a_code(folder: str) -> Iterator[None]:
    try:
        yield
    except Exception as e:
        if to_stateflow_error(e, Path(folder)) is None:
            raise


def main() -> None:
    # Ends a process that a forged size lets allocate gigabytes; the limit of what is used is checked for each store.
    limit(10 * LIMIT, 600)
    for folder in sys.stdin.read().split():
        peak = MemoryPeak()
        # Its signal ends the process.
        signal.setitimer(signal.ITIMER_VIRTUAL, _CPU_SECONDS)
        _use(folder)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        assert peak.bytes() <= LIMIT, peak.bytes()
        print(folder, flush=True)


if __name__ == "__main__":
    main()
