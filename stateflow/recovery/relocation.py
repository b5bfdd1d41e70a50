"""Moving a file source's folder: the job's positions are kept, and the files that it has read are known in the new
place."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from msgspec.structs import replace

from stateflow import failpoints
from stateflow.checkpoint.documents import Manifest, RestoreFacts, SourceFile, SourcePosition
from stateflow.checkpoint.entries import Adoption
from stateflow.checkpoint.files import write_bytes
from stateflow.checkpoint.history import ActionRecord, write_action
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.checkpoint.log import Head
from stateflow.checkpoint.untold import tell_history
from stateflow.errors import ConfigError, DataError, PlanOutdated
from stateflow.recovery.job_roots import now, open_root
from stateflow.runtime.seeding import INLINE_LIMIT, source_log
from stateflow.runtime.source_paths import Move, SeenFile, moved_description, moved_log, seen_files
from stateflow.runtime.state_import import import_state
from stateflow.state.transfer import hash_file
from stateflow.storage import Storage
from stateflow.storage.paths import data_folder


class Check(StrEnum):
    """How the files that were read are compared with those in the new place."""

    NAMES = "names"
    """A file of the same name is there."""
    CONTENT = "content"
    """It also has the same bytes as in the old place; where that is gone, the modification time that was recorded."""


@dataclass(frozen=True)
class Relocation:
    """A folder that was moved or copied.

    Attributes:
        source: uid.
        old: the folder, as the job file names it, or one above it.
        new: where its files are now, as the job file will name it.
    """

    source: str
    old: str
    new: str
    check: Check = Check.NAMES
    by: str = ""
    reason: str = ""
    dry_run: bool = False


@dataclass(frozen=True)
class RelocationReport:
    """What was, or would be, done.

    Attributes:
        seen: files that were read, all of which are in the new place.
        unread: files in the new place that the next run will read, as far as their names show.
        checkpoint_id: the checkpoint that the next run continues from.
        repeated: whether it was done before, and nothing was now.
    """

    job: str
    source: str
    description: str
    seen: int
    unread: int
    checkpoint_id: int
    dry_run: bool
    repeated: bool = False


def relocate_source(job_root: str, wanted: Relocation) -> RelocationReport:
    """Makes the job's newest checkpoint one that knows the source's files in their new folder. State, offsets and
    tables stay as they are. Fences a run that is at work. Done before, it does nothing.

    Raises:
        ConfigError: the job, its source or the folder is not what was said; files that were read are not there, or
            changed.
        PlanOutdated: the job has moved on meanwhile.
        MissingFile, CorruptFile: the checkpoint is damaged.
    """
    root = open_root(job_root)
    head = root.head()
    manifest = _manifest(root, head)
    position = _position(manifest, wanted.source)
    old, new = _address(wanted.old), _address(wanted.new)
    description = moved_description(position.description, old, new)
    is_done = description is None and moved_description(position.description, new, old) is not None
    if description is None and not is_done:
        raise ConfigError("the source does not read from that folder", hint="give the folder as the job file names it, "
                          "or one above it", source=wanted.source, reads=position.description,
                          folder=old)  # fmt: skip
    move = Move(_local(old), _local(new))
    if is_done:
        return RelocationReport(root.job.job, wanted.source, position.description, 0, 0, head.checkpoint_id,
                                wanted.dry_run, repeated=True)  # fmt: skip
    assert description is not None
    plan = _plan(root.storage, manifest, wanted.source, move)
    known = check_files(plan.seen, move, wanted.check)
    unread = len(set(files_of_source(description)) - known)
    if not wanted.dry_run:
        head = _carry_out(root, head, replace(manifest, sources=[
            replace(p, description=description) if p.uid == wanted.source else p for p in manifest.sources
        ]), plan, wanted)  # fmt: skip
    return RelocationReport(root.job.job, wanted.source, description, len(plan.seen), unread, head.checkpoint_id,
                            wanted.dry_run)  # fmt: skip


@dataclass(frozen=True)
class _Plan:
    """What a relocation rewrites.

    Attributes:
        logs: the new content of the source's log entries, by path.
    """

    logs: dict[str, bytes] = field(default_factory=dict)
    seen: list[SeenFile] = field(default_factory=list)


def _manifest(root: JobRoot, head: Head) -> Manifest:
    if head.entry.rewind is not None:
        raise ConfigError("a restore is not completed", hint="start the job once, which completes it",
                          root=root.storage.uri)  # fmt: skip
    manifest = root.manifest(head)
    if manifest is None:
        raise DataError(
            "the job has no checkpoint yet", hint="change the path in the job file: nothing was read"
        )
    if manifest.spark is None:
        raise ConfigError("the job's sources are not read by Spark", hint="only file sources can be relocated",
                          sources=[p.uid for p in manifest.sources])  # fmt: skip
    return manifest


def _position(manifest: Manifest, uid: str) -> SourcePosition:
    for position in manifest.sources:
        if position.uid == uid:
            return position
    raise ConfigError("there is no such source", uid=uid, known=[p.uid for p in manifest.sources])


def _address(path: str) -> str:
    """As a file source has it in its description."""
    return path if "://" in path else os.path.abspath(path)


def _local(address: str) -> PurePosixPath:
    parts = urlsplit(address)
    if "://" in address and (parts.scheme != "file" or parts.netloc not in ("", "localhost")):
        raise ConfigError("only folders of this host's file systems can be relocated", hint="give the source a new uid "
                          "in a new job root, or keep the old address", folder=address)  # fmt: skip
    return PurePosixPath(os.path.normpath(unquote(parts.path) if "://" in address else address))


def _plan(storage: Storage, manifest: Manifest, uid: str, move: Move) -> _Plan:
    assert manifest.spark is not None
    # Spark numbers the sources of the query, which has them in the order of the manifest.
    number = [p.uid for p in manifest.sources].index(uid)
    plan = _Plan()
    for file in manifest.spark.source_files:
        if file.path.split("/")[0] == str(number):
            content = source_log(storage, file)
            plan.seen.extend(seen_files(content, file.path))
            plan.logs[file.path] = moved_log(content, file.path, move)
    return plan


def check_files(seen: list[SeenFile], move: Move, check: Check) -> set[Path]:
    """Where the files that were read are now. Raises ConfigError unless every one of them is there."""
    if not Path(move.new).is_dir():
        raise ConfigError(
            "the new folder is not there", hint="move or copy the files first", folder=str(move.new)
        )
    places = {file: move.path(file.path) for file in seen}
    missing = [str(new) for new in places.values() if not new.is_file()]
    if missing:
        raise ConfigError("files that the job has read are not in the new folder", hint="move or copy them as well, "
                          "under their names: a file of another name is read as a new one", missing=len(missing),
                          files=missing[:3])  # fmt: skip
    changed = [str(new) for file, new in places.items() if check is Check.CONTENT and not _is_same(file, new)]
    if changed:
        raise ConfigError("files that the job has read are others in the new folder", hint="restore them; or, if only "
                          "their times differ, compare names: --check names", changed=len(changed),
                          files=changed[:3])  # fmt: skip
    return set(places.values())


def files_of_source(description: str) -> Iterator[Path]:
    """The files that a file source would read, by its description: those of its folder, or that its pattern matches."""
    path = str(_local(description.removesuffix("]").partition(":")[2]))
    places = glob.glob(path) if any(c in path for c in "*?[") else [path]
    for place in map(Path, places):
        if place.is_file():
            yield place
        else:
            yield from _files_below(place)


def _is_same(file: SeenFile, new: Path) -> bool:
    old = Path(file.path)
    if not old.is_file():
        return new.stat().st_mtime_ns // 1_000_000 == file.modified
    return old.samefile(new) or (
        old.stat().st_size == new.stat().st_size and hash_file(old) == hash_file(new)
    )


def _files_below(folder: Path) -> Iterator[Path]:
    """What Spark takes for files of a source."""
    for path in folder.rglob("*"):
        if not any(part[0] in "._" for part in path.relative_to(folder).parts) and path.is_file():
            yield path


def _carry_out(root: JobRoot, head: Head, manifest: Manifest, plan: _Plan, wanted: Relocation) -> Head:
    digest = hashlib.sha256(
        "\0".join((wanted.source, wanted.old, wanted.new, str(head.checkpoint_id))).encode()
    )
    request = f"relocate-{digest.hexdigest()[:16]}"
    note = f"source {wanted.source} moved to {wanted.new}" + (f": {wanted.reason}" if wanted.reason else "")
    claimed = root.claim_on(head, request, note)
    if claimed is None:
        raise PlanOutdated("the job has moved on meanwhile", hint="stop its runs, then say it again",
                           checkpoint=head.checkpoint_id)  # fmt: skip
    failpoints.hit("relocate.claimed")
    # The manifest that it is in goes out of sight.
    if not head.entry.ended:
        tell_history(root, head)
    assert manifest.spark is not None
    folder = data_folder(claimed.entry.generation, 1, f"relocate{root.clock.new_id()[:12]}")
    files = [_stored(root.storage, folder, file, plan.logs) for file in manifest.spark.source_files]
    manifest = replace(manifest, spark=replace(manifest.spark, source_files=files))
    handle = import_state(root, manifest, None, claimed.entry.generation)
    failpoints.hit("relocate.stored")
    # Before the entry that adopts it: a second try after a kill uses the name again.
    write_action(root.storage, ActionRecord(
        seq=head.checkpoint_id, kind="relocate", at=now(root), by=wanted.by or root.writer, reason=wanted.reason,
        facts={"source": wanted.source, "from": wanted.old, "to": wanted.new, "request": request},
    ), digest.hexdigest())  # fmt: skip
    facts = RestoreFacts(request=request, by=wanted.by or root.writer, reason=wanted.reason, label=head.stand,
                         base=head.checkpoint_id, left=head.checkpoint_id, at=now(root))  # fmt: skip
    adoption = Adoption(upto=head.checkpoint_id, manifest=handle, sources=manifest.sources,
                        savepoint=head.entry.savepoint, restore=facts)  # fmt: skip
    adopted = root.adopt(claimed, adoption, note)
    failpoints.hit("relocate.adopted")
    return adopted


def _stored(storage: Storage, folder: str, file: SourceFile, logs: dict[str, bytes]) -> SourceFile:
    content = logs.get(file.path)
    if content is None:
        return file
    if len(content) <= INLINE_LIMIT:
        return SourceFile(path=file.path, content=content)
    key = f"{folder}sources-{file.path.replace('/', '-')}"
    return SourceFile(path=file.path, handle=write_bytes(storage, key, content))
