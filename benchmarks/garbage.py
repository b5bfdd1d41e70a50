"""Compares garbage collection of ten thousand files on POSIX with ``rm -r`` of as many."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results import write_result
from stateflow.checkpoint.garbage_collector import Collector
from stateflow.checkpoint.log.checkpoint_log import Appended
from stateflow.checkpoint.log.completed_checkpoints import RetentionLimits
from stateflow.checkpoint.log.documents import Manifest
from stateflow.checkpoint.log.job_root import JobRoot, NewJob
from stateflow.checkpoint.log.manifest_files import write_bytes, write_manifest
from stateflow.checkpoint.log.transitions import Commit
from stateflow.clock import SystemClock
from stateflow.storage import PosixStorage
from stateflow.storage.paths import data_folder

_REPEATS = 3


@dataclass(frozen=True)
class Size:
    """How much there is to do.

    Attributes:
        files: that nothing needs.
        checkpoints: whose folders have them.
        bytes: of a file.
    """

    files: int = 10_000
    checkpoints: int = 500
    bytes: int = 4_096


def run(folder: Path, size: Size = Size()) -> Path:
    """Measures and writes ``gc.json``."""
    ours, plain = [], []
    for number in range(_REPEATS):
        home = folder / str(number)
        root = _filled(home / "root", size)
        shutil.copytree(home / "root" / "data", home / "copy")
        ours.append(_collected(root, size))
        plain.append(_removed(home / "copy"))
    return write_result(
        "gc",
        {
            f"files_{size.files}_s": round(statistics.median(ours), 3),
            "rm_s": round(statistics.median(plain), 3),
            "checkpoints": size.checkpoints,
        },
    )


def _filled(folder: Path, size: Size) -> JobRoot:
    """A job root whose newest checkpoint needs none of the files of those before it."""
    storage = PosixStorage(folder)
    root = JobRoot.create_or_open(storage, SystemClock(), NewJob("job", 4, {}), "benchmark")
    head = root.claim()
    content = bytes(size.bytes)
    for number in range(size.files):
        into = data_folder(head.entry.generation, number % size.checkpoints + 1, "attempt")
        write_bytes(storage, f"{into}op-0-{number:06d}.sst", content)
    ordinal = size.checkpoints + 1
    manifest = Manifest(
        job_uuid=root.job.job_uuid, generation=head.entry.generation, ordinal=ordinal, operators=[], sources=[]
    )
    handle = write_manifest(storage, data_folder(head.entry.generation, ordinal, "attempt"), manifest)
    done = root.commit(head, Commit(ordinal, handle, [], [], {}, frozenset()), RetentionLimits(1))
    assert isinstance(done, Appended)
    return root


def _collected(root: JobRoot, size: Size) -> float:
    began = time.perf_counter()
    collection = Collector(root).collect()
    took = time.perf_counter() - began
    assert collection.files >= size.files and len(root.storage.list("data/")) == 1
    return took


def _removed(folder: Path) -> float:
    began = time.perf_counter()
    subprocess.run(["rm", "-r", str(folder)], check=True)
    return time.perf_counter() - began
