"""Measures what checkpoints upload relative to what changed, and compaction over many batches, of both kinds.

The stores are those of a job with two subtasks: RocksDB as operators have it, a job root on POSIX, keys and values as
keyed state encodes them. Keys are drawn at random, distinct within a batch; values are 200 random bytes.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.results import write_result
from benchmarks.stores import LookUps, Stores
from stateflow.config.settings import COMPACTIONS, RocksDBSettings
from stateflow.state.backends.base import StoreSnapshot
from stateflow.state.backends.rocksdb.manifest import parse
from stateflow.state.host_cache import remove_tree

_SHARES = {"0_1": 0.001, "1": 0.01, "5": 0.05, "20": 0.2}
_REPEATS = 3


@dataclass(frozen=True)
class Size:
    """How much there is to do."""

    keys: int = 5_000_000
    batches: int = 200
    early: int = 10
    look_ups: LookUps = field(default_factory=LookUps)


def run(folder: Path, size: Size = Size()) -> Path:
    """Measures and writes ``increments.json``."""
    figures: dict[str, Any] = _shares(folder / "shares", size)
    kinds = {kind: _long_run(folder / kind, size, kind) for kind in COMPACTIONS}
    chosen = kinds[RocksDBSettings().compaction]
    figures |= {name: chosen[name] for name in ("total_ratio_200_batches", "lookup_ratio_200_vs_10")}
    figures |= {"restore_ratio": chosen["restore_ratio"], "by_compaction": kinds, "keys": size.keys}
    return write_result("increments", figures)


def _shares(folder: Path, size: Size) -> dict[str, Any]:
    """Increments of one batch each, without the bytes of a compaction, over the encoded bytes that changed."""
    stores = Stores(folder, size.keys)
    stores.load()
    stores.checkpoint()
    figures = {}
    for name, share in _SHARES.items():
        changed = stores.change(stores.rng.sample(range(size.keys), int(size.keys * share)))
        uploaded, compacted = stores.checkpoint()
        figures[f"ratio_{name}_percent"] = round((uploaded - compacted) / changed, 3)
    stores.close()
    remove_tree(folder)
    return figures


def _long_run(folder: Path, size: Size, compaction: str) -> dict[str, Any]:
    """Batches of one percent: what they upload in all, and what look-ups cost early and late."""
    stores = Stores(folder, size.keys, RocksDBSettings(compaction=compaction))
    loaded = stores.load()
    stores.checkpoint()
    changed, uploads, compacted, runs, seconds = 0, [], 0, [], []
    early: list[StoreSnapshot] = []
    for batch in range(1, size.batches + 1):
        changed += stores.change(stores.rng.sample(range(size.keys), size.keys // 100))
        began = time.perf_counter()
        uploaded, rewritten = stores.checkpoint()
        seconds.append(time.perf_counter() - began)
        uploads.append(uploaded)
        compacted += rewritten
        runs.append(statistics.mean(map(_sorted_runs, stores.taken)))
        if batch == size.early:
            early = list(stores.taken)
    stores.close()
    before, behind = stores.compare_look_ups(early, size.look_ups)
    incremental = min(stores.restore("another-host") for _ in range(_REPEATS))
    stored = sum(f.size for taken in stores.taken for f in taken.files)
    stores.write_full()
    full = min(stores.restore("third-host") for _ in range(_REPEATS))
    stores.close()
    remove_tree(folder)
    return {
        "total_ratio_200_batches": round(sum(uploads) / changed, 2),
        "write_amplification": round((sum(uploads) - changed) / changed + 1, 2),
        "files_per_look_up": round(statistics.mean(runs), 1),
        "most_files_per_look_up": max(runs),
        "look_up_us_after_10": round(before, 2),
        "look_up_us_after_200": round(behind, 2),
        "lookup_ratio_200_vs_10": round(behind / before, 2),
        "peak_upload_of_state": round(max(uploads) / loaded, 2),
        "space_amplification": round(stored / loaded, 2),
        "compaction_share": round(compacted / sum(uploads), 2),
        "checkpoint_ms_median": round(statistics.median(seconds) * 1000, 1),
        "checkpoint_ms_worst": round(max(seconds) * 1000, 1),
        "restore_s_after_200": round(incremental, 3),
        "restore_s_full": round(full, 3),
        "restore_ratio": round(incremental / full, 2),
    }


def _sorted_runs(taken: StoreSnapshot) -> int:
    levels = [file.level for file in parse(taken.store_manifest, "a benchmark").files]
    return levels.count(0) + len({*levels} - {0})
