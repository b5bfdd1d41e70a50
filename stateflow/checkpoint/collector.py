"""Garbage collection: reads a verified head, deletes what `garbage` says, any number of collectors at once."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from msgspec.structs import replace

from stateflow import failpoints
from stateflow.checkpoint import entries
from stateflow.checkpoint.files import files_of
from stateflow.checkpoint.garbage import COLLECTED, Fate, fate_of, find_garbage
from stateflow.checkpoint.jobroot import JobRoot, kept
from stateflow.checkpoint.log import Head
from stateflow.checkpoint.savepoint_cleanup import left_over, sweep_savepoints
from stateflow.errors import DataError
from stateflow.state.handles import FileHandle
from stateflow.storage import BlobInfo

_BATCH, _WORKERS = 200, 4


@dataclass(frozen=True)
class FileFate:
    """What becomes of a stored object.

    Attributes:
        needed_by: checkpoints, with who pins them.
    """

    key: str
    size: int
    fate: Fate
    needed_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Collection:
    """What a collection deleted, or would delete."""

    head_seq: int
    retained: tuple[int, ...]
    files: int
    bytes_freed: int
    unknown: tuple[str, ...]
    dry_run: bool


class Collector:
    """Collects one job's garbage. Keeps the file lists of manifests between collections: they never change."""

    def __init__(self, root: JobRoot) -> None:
        self.root = root
        self._files: dict[str, frozenset[str]] = {}

    def preview(self, retain: int | None = None) -> Collection:
        """What `collect` would delete, after `JobRoot.retain` of so many checkpoints; changes nothing."""
        head = self.root.head()
        if retain is not None:
            left = entries.newest(head.entry.retained, retain - 1)
            head = Head(replace(head.entry, retained=left), head.sha256)
        return self._collect(head, self.live(head), dry_run=True)

    def collect(self) -> Collection:
        """Deletes everything that is garbage at the newest entry. Raises DataError when a kept checkpoint is damaged,
        before anything is deleted."""
        head, live = self._live_at_head()
        found = self._collect(head, live, dry_run=False)
        sweep_savepoints(self.root)
        self.root.storage.tidy()
        return found

    def _collect(self, head: Head, live: frozenset[str], dry_run: bool) -> Collection:
        # The listing comes after the head: a file that appears in between is of a later ordinal, so never garbage.
        blobs = [blob for area in COLLECTED for blob in self.root.storage.list(area)]
        findings = find_garbage(head.entry, live, blobs)
        failpoints.hit("gc.listed")
        if not dry_run:
            self._delete(findings.garbage)
        return Collection(
            head.entry.seq, tuple(ref.id for ref in kept(head)), len(findings.garbage),
            sum(blob.size for blob in findings.garbage), findings.unknown, dry_run,
        )  # fmt: skip

    def _live_at_head(self) -> tuple[Head, frozenset[str]]:
        head = self.root.head()
        while True:
            try:
                return head, self.live(head)
            except DataError:
                # A newer entry may have let a checkpoint go, and another collector have taken it: no damage then.
                newer = self.root.head()
                if newer == head:
                    raise
                head = newer

    def live(self, head: Head) -> frozenset[str]:
        """Keys of every file that `head` or a checkpoint it keeps needs."""
        manifests = {handle.key: handle for handle in self._manifests(head).values()}
        with ThreadPoolExecutor(_WORKERS) as pool:
            lists = dict(zip(manifests, pool.map(self._files_of, manifests.values()), strict=True))
        self._files = lists
        return frozenset().union(*lists.values())

    def explain(self, blobs: Iterable[BlobInfo]) -> list[FileFate]:
        """What becomes of each object, by the newest entry, and who needs it. Raises as `collect` does."""
        head, live = self._live_at_head()
        needs: dict[str, list[str]] = {}
        for who, handle in self._manifests(head).items():
            for key in self._files_of(handle):
                needs.setdefault(key, []).append(who)
        unfinished = left_over(self.root)

        def fate(key: str) -> Fate:
            return Fate.UNFINISHED if key in unfinished else fate_of(head.entry, live, key)

        return [FileFate(b.key, b.size, fate(b.key), tuple(needs.get(b.key, ()))) for b in blobs]

    def _manifests(self, head: Head) -> dict[str, FileHandle]:
        """The manifest of the head and of each checkpoint that it keeps, by who needs it."""
        pins: dict[int, list[str]] = {}
        for pin in head.entry.pinned:
            pins.setdefault(pin.checkpoint.id, []).append(f"pin of {pin.owner}: {pin.reason}")
        found = {}
        if head.entry.manifest:
            found[f"checkpoint {head.checkpoint_id} (the present one)"] = head.entry.manifest
        for ref in {r.id: r for r in kept(head)}.values():
            if head.checkpoint is None or ref.id != head.checkpoint.id:
                handle = self.root.log.read_checkpoint(ref).manifest
                assert handle is not None
                why = "; ".join(pins.get(ref.id, []))
                found[f"checkpoint {ref.id}" + (f" ({why})" if why else "")] = handle
        return found

    def _files_of(self, handle: FileHandle) -> frozenset[str]:
        known = self._files.get(handle.key)
        if known is not None:
            return known
        manifest = self.root.read_manifest(handle)
        return frozenset([handle.key, *(f.key for f in files_of(manifest))])

    def _delete(self, garbage: tuple[BlobInfo, ...]) -> None:
        """Some deletions are under way at once; behind one that fails none begins. Garbage is garbage for ever, so the
        order does not matter."""
        keys = [blob.key for blob in garbage]
        batches = [keys[start : start + _BATCH] for start in range(0, len(keys), _BATCH)]
        with ThreadPoolExecutor(_WORKERS) as pool:
            for _ in pool.map(self.root.storage.delete, batches):
                failpoints.hit("gc.deleting")
