"""Import of a manifest and its state files into a job root."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from stateflow.checkpoint.log.documents import Manifest, SourceFile, SparkPosition
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import check_hashes, files_of, state_bytes, write_bytes, write_manifest
from stateflow.checkpoint.restore.mapped_state import Rewrite
from stateflow.checkpoint.restore.source_positions import INLINE_LIMIT
from stateflow.checkpoint.savepoints.canonical.rekeyed_state import rekey
from stateflow.checkpoint.savepoints.canonical.writer import Destination
from stateflow.checkpoint.savepoints.create import copy_objects, replace_keys
from stateflow.runtime.restore.state_rewriting import RewriteTarget, StateLocation, check_no_raw_keyed, rewrite_operator
from stateflow.state.handles import FileHandle
from stateflow.storage import Storage
from stateflow.storage.paths import data_folder

__all__ = ["ImportTarget", "StateLocation", "import_files", "import_state"]


@dataclass(frozen=True)
class ImportTarget:
    """Where state is imported.

    Attributes:
        storage: the storage.
        max_parallelism: the number of key groups there.
        prefix: prefix of the files' keys in the manifest.
        folder: prefix of all keys in the storage, which the manifest does not have.
    """

    storage: Storage
    max_parallelism: int
    prefix: str
    folder: str = ""


def import_state(
    root: JobRoot, manifest: Manifest, location: StateLocation | None, generation: int, rewrites: Sequence[Rewrite] = ()
) -> FileHandle:
    """Copies the files of a manifest into a job root, verifies every file, and stores the manifest there.

    State with another max parallelism gets that of the job root.

    Args:
        manifest: the manifest, without the operators of `rewrites`.
        location: where the files are; None for files that the root has already.
        generation: the generation of the importing process, which must not have committed yet.
        rewrites: operators whose state is written again.

    Raises:
        MissingFile, CorruptFile: a file is missing or damaged.
        IncompatibleState: the state has another max parallelism, and its keys are not known.
    """
    ordinal = 1
    into = data_folder(generation, ordinal, f"restore{root.clock.new_id()[:12]}")
    if location is not None:
        manifest = import_files(ImportTarget(root.storage, root.job.max_parallelism, into), manifest, location)
    if rewrites:
        target = RewriteTarget(root.storage, into, root.job.max_parallelism, root.clock)
        rewritten = [rewrite_operator(each, location or StateLocation(root.storage), target) for each in rewrites]
        operators = sorted((*manifest.operators, *rewritten), key=lambda operator: operator.uid)
        manifest = replace(manifest, operators=operators, full_bytes=state_bytes(operators))
    manifest = replace(manifest, spark=manifest.spark and _with_stored_logs(root, into, manifest.spark))
    manifest = replace(manifest, job_uuid=root.job.job_uuid, generation=generation, ordinal=ordinal)
    # Its records are those of another job or line of checkpoints.
    manifest = replace(manifest, record=None, history=[], parent=None, batches=[])
    return write_manifest(root.storage, into, manifest)


def _with_stored_logs(root: JobRoot, folder: str, spark: SparkPosition) -> SparkPosition:
    """Returns the position with each log of a source in a file that is too large for a manifest."""

    def stored(file: SourceFile) -> SourceFile:
        if file.content is None or len(file.content) <= INLINE_LIMIT:
            return file
        key = f"{folder}sources-{file.path.replace('/', '-')}"
        return SourceFile(path=file.path, handle=write_bytes(root.storage, key, file.content))

    return replace(spark, source_files=[stored(file) for file in spark.source_files])


def import_files(target: ImportTarget, manifest: Manifest, location: StateLocation) -> Manifest:
    """Copies the files of a manifest, and verifies every file; raises as `import_state` does.

    Returns:
        The manifest with the keys of the copies, without the target's folder.
    """
    if location.max_parallelism in (None, target.max_parallelism):
        return _copied(target, manifest, location)
    return _rekeyed(target, manifest, location)


def _copied(target: ImportTarget, manifest: Manifest, location: StateLocation) -> Manifest:
    names = {f.key: f"{target.prefix}{f.sha256}" for f in files_of(manifest)}
    copies = [(f"{location.folder}{key}", f"{target.folder}{to}") for key, to in names.items()]
    copy_objects(location.storage, copies, target.storage)
    linked = {to for key, to in copies if location.checked and _is_same_file(location.storage, key, target.storage, to)}
    manifest = replace_keys(manifest, names)
    stored = {f"{target.folder}{f.key}": f for f in files_of(manifest)}
    check_hashes(target.storage, [replace(f, key=key) for key, f in stored.items() if key not in linked])
    return manifest


def _rekeyed(target: ImportTarget, manifest: Manifest, location: StateLocation) -> Manifest:
    check_no_raw_keyed(manifest.operators, location)
    complete = replace_keys(manifest, {f.key: f"{location.folder}{f.key}" for f in files_of(manifest)})
    to = Destination(folder=target.folder, files=1, prefix=target.prefix)
    rekeyed = rekey(location.storage, complete, target.storage, to, target.max_parallelism)
    others = replace(manifest, operators=[replace(o, subtasks=[]) for o in manifest.operators])
    copied = _copied(target, others, location)
    both = zip(copied.operators, rekeyed.operators, strict=True)
    return replace(copied, operators=[replace(other, subtasks=keyed.subtasks) for other, keyed in both])


def _is_same_file(source: Storage, key: str, target: Storage, copy: str) -> bool:
    """Returns whether the copy is a hard link of the verified file, so that it need not be read again."""
    found = target.file_id(copy)
    return found is not None and source.file_id(key) == found
