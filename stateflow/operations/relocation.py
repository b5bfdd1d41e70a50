"""Relocation of a file source's folder: the job keeps its positions, and the files that it has read stay read."""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec.structs import replace

from stateflow import failpoints
from stateflow.api.input_files import file_uri
from stateflow.checkpoint.history import flush_pending_records, write_action
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import ActionRecord, Manifest, RestoreFacts, SourceFile, SourcePosition
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import write_bytes
from stateflow.checkpoint.log.transitions import Adoption
from stateflow.checkpoint.restore.source_positions import INLINE_LIMIT
from stateflow.errors import ConfigError, CorruptFile, DataError, PlanOutdated
from stateflow.operations.job_root import now, open_root
from stateflow.runtime.restore.state_import import import_state
from stateflow.runtime.spark.checkpoint_location import decode_logged_file, source_log
from stateflow.state.host_cache import hash_file
from stateflow.storage import Storage
from stateflow.storage.paths import data_folder


class FileCheck(StrEnum):
    """Comparison of the files that were read with those in the new folder."""

    NAMES = "names"
    """A file of the same name exists."""
    CONTENT = "content"
    """It also has the same bytes as the old file; without the old file, the recorded modification time."""


@dataclass(frozen=True)
class Relocation:
    """A source's folder that was moved or copied.

    Attributes:
        source: uid of the source.
        old: the folder as the job file names it, or a parent of it.
        new: the new path of that folder, as the job file will name it.
    """

    source: str
    old: str
    new: str
    check: FileCheck = FileCheck.NAMES
    by: str = ""
    reason: str = ""
    dry_run: bool = False


@dataclass(frozen=True)
class RelocationReport:
    """Result of a relocation, or of its dry run.

    Attributes:
        job: name of the job.
        source: uid of the source.
        description: description of the relocated source.
        seen_files: number of files that were read, all of which exist in the new folder.
        unread_files: number of files in the new folder that the next run will read, according to their names.
        checkpoint_id: the checkpoint that the next run continues from.
        dry_run: whether nothing was recorded.
        repeated: whether the source was relocated before this call, which then changed nothing.
    """

    job: str
    source: str
    description: str
    seen_files: int
    unread_files: int
    checkpoint_id: int
    dry_run: bool
    repeated: bool = False


def relocate_source(job_root: str, relocation: Relocation) -> RelocationReport:
    """Replaces the folder of a file source in the job's newest checkpoint; fences an active run.

    State, offsets and tables do not change. Does nothing if the source was relocated before.

    Raises:
        ConfigError: the source does not exist or does not read the folder; files that were read are missing from the
            new folder, or differ there.
        PlanOutdated: the job progressed concurrently.
        MissingFile, CorruptFile: the checkpoint is damaged.
    """
    root = open_root(job_root)
    head = root.head()
    manifest = _manifest(root, head)
    position = _position(manifest, relocation.source)
    old, new = _absolute(relocation.old), _absolute(relocation.new)
    move = FolderMove(_local(old), _local(new))
    description = relocate_description(position.description, old, new)
    if description is None:
        if relocate_description(position.description, new, old) is None:
            raise ConfigError(
                "the source does not read from that folder",
                hint="give the folder as the job file names it, or a parent of it",
                source=relocation.source,
                reads=position.description,
                folder=old,
            )
        return _report(root, head, relocation, position.description, repeated=True)
    logs, read = _relocate_logs(root.storage, manifest, relocation.source, move)
    known = check_files(read, move, relocation.check)
    unread = len(set(files_of_source(description)) - known)
    if not relocation.dry_run:
        sources = [replace(p, description=description) if p is position else p for p in manifest.sources]
        head = _commit(root, head, relocation, replace(manifest, sources=sources), logs)
    report = _report(root, head, relocation, description)
    return dataclasses.replace(report, seen_files=len(read), unread_files=unread)


def _report(
    root: JobRoot, head: Head, relocation: Relocation, description: str, repeated: bool = False
) -> RelocationReport:
    return RelocationReport(
        job=root.job.job,
        source=relocation.source,
        description=description,
        seen_files=0,
        unread_files=0,
        checkpoint_id=head.checkpoint_id,
        dry_run=relocation.dry_run,
        repeated=repeated,
    )


def _manifest(root: JobRoot, head: Head) -> Manifest:
    if head.entry.rewind is not None:
        raise ConfigError(
            "a restore is not completed", hint="start the job once, which completes it", root=root.storage.uri
        )
    manifest = root.checkpoints.manifest_at(head)
    if manifest is None:
        raise DataError("the job has no checkpoint yet", hint="change the path in the job file: no file was read yet")
    if manifest.spark is None:
        raise ConfigError(
            "the job's sources are not read by Spark",
            hint="only file sources can be relocated",
            sources=[p.uid for p in manifest.sources],
        )
    return manifest


def _position(manifest: Manifest, uid: str) -> SourcePosition:
    for position in manifest.sources:
        if position.uid == uid:
            return position
    raise ConfigError(
        "the source does not exist", hint="use one of the known uids", uid=uid, known=[p.uid for p in manifest.sources]
    )


def _absolute(path: str) -> str:
    """Returns a path or URI as the description of a file source has it."""
    return path if "://" in path else os.path.abspath(path)


def _local(address: str) -> PurePosixPath:
    parts = urlsplit(address)
    if "://" in address and (parts.scheme != "file" or parts.netloc not in ("", "localhost")):
        raise ConfigError(
            "only folders in local file systems can be relocated",
            hint="keep the old address; or set the position: stateflow restore with --source UID=earliest",
            folder=address,
        )
    return PurePosixPath(os.path.normpath(unquote(parts.path) if "://" in address else address))


def _relocate_logs(
    storage: Storage, manifest: Manifest, uid: str, move: FolderMove
) -> tuple[dict[str, bytes], list[LoggedFile]]:
    """Returns the new content of the source's log entries, by path, and the files that it has read, by old path."""
    assert manifest.spark is not None
    # Spark numbers the sources of a query in the order of the manifest.
    number = [p.uid for p in manifest.sources].index(uid)
    logs, seen = dict[str, bytes](), list[LoggedFile]()
    for file in manifest.spark.source_files:
        if file.path.split("/")[0] == str(number):
            content = source_log(storage, file)
            seen.extend(parse_logged_files(content, file.path))
            logs[file.path] = relocate_log(content, file.path, move)
    return logs, seen


def check_files(seen: list[LoggedFile], move: FolderMove, check: FileCheck) -> set[Path]:
    """Returns the new paths of the files that were read.

    Raises ConfigError when one of them does not exist, or differs from the file that was read.
    """
    if not Path(move.new).is_dir():
        raise ConfigError("the new folder does not exist", hint="move or copy the files first", folder=str(move.new))
    paths = {file: move.path(file.path) for file in seen}
    missing = [str(new) for new in paths.values() if not new.is_file()]
    if missing:
        raise ConfigError(
            "files that the job has read are not in the new folder",
            hint="move or copy them as well, under the same names: a file of another name is read as a new one",
            missing=len(missing),
            files=missing[:3],
        )
    changed = [
        str(new) for file, new in paths.items() if check is FileCheck.CONTENT and not _has_same_content(file, new)
    ]
    if changed:
        raise ConfigError(
            "files that the job has read differ in the new folder",
            hint="restore them; or, if only their modification times differ, pass --check names",
            changed=len(changed),
            files=changed[:3],
        )
    return set(paths.values())


def files_of_source(description: str) -> Iterator[Path]:
    """Yields the files that a file source would read: those in its folder, or those that its pattern matches.

    Args:
        description: description of the source, with a path or a glob pattern.
    """
    path = str(_local(description.removesuffix("]").partition(":")[2]))
    matches = glob.glob(path) if any(c in path for c in "*?[") else [path]
    for match in map(Path, matches):
        if match.is_file():
            yield match
        else:
            yield from _files_below(match)


def _has_same_content(file: LoggedFile, new: Path) -> bool:
    old = Path(file.path)
    if not old.is_file():
        return new.stat().st_mtime_ns // 1_000_000 == file.modified
    return old.samefile(new) or (old.stat().st_size == new.stat().st_size and hash_file(old) == hash_file(new))


def _files_below(folder: Path) -> Iterator[Path]:
    """Yields the files that Spark reads from a folder: hidden ones are skipped."""
    for path in folder.rglob("*"):
        if not any(part[0] in "._" for part in path.relative_to(folder).parts) and path.is_file():
            yield path


def _commit(root: JobRoot, head: Head, relocation: Relocation, manifest: Manifest, logs: Mapping[str, bytes]) -> Head:
    """Appends a CLAIM that adopts the relocated manifest; returns it."""
    parts = (relocation.source, relocation.old, relocation.new, str(head.checkpoint_id))
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    request = f"relocate-{digest[:16]}"
    reason = f": {relocation.reason}" if relocation.reason else ""
    note = f"source {relocation.source} moved to {relocation.new}{reason}"
    claimed = root.claim_on(head, request, note)
    if claimed is None:
        raise PlanOutdated(
            "the job progressed concurrently",
            hint="stop its runs, then repeat the command",
            checkpoint_id=head.checkpoint_id,
        )
    failpoints.hit("relocate.claimed")
    # No later entry refers to the manifest that holds these records.
    if not head.entry.ended:
        flush_pending_records(root, head)
    adoption = _adoption(root, head, claimed.entry.generation, manifest, logs)
    failpoints.hit("relocate.stored")
    facts = RestoreFacts(
        request=request,
        by=relocation.by or root.requester,
        reason=relocation.reason,
        label=head.checkpoint_label,
        base=head.checkpoint_id,
        left=head.checkpoint_id,
        at=now(root),
    )
    _record(root, relocation, facts, digest)
    adopted = root.adopt(claimed, dataclasses.replace(adoption, restore=facts), note)
    failpoints.hit("relocate.adopted")
    return adopted


def _adoption(root: JobRoot, head: Head, generation: int, manifest: Manifest, logs: Mapping[str, bytes]) -> Adoption:
    """Stores the manifest and the relocated log entries."""
    assert manifest.spark is not None
    folder = data_folder(generation, 1, f"relocate{root.clock.new_id()[:12]}")
    files = [_store_log(root.storage, folder, file, logs) for file in manifest.spark.source_files]
    manifest = replace(manifest, spark=replace(manifest.spark, source_files=files))
    return Adoption(
        upto=head.checkpoint_id,
        manifest=import_state(root, manifest, None, generation),
        sources=manifest.sources,
        savepoint=head.entry.savepoint,
        watermark=manifest.output_watermark,
    )


def _record(root: JobRoot, relocation: Relocation, facts: RestoreFacts, digest: str) -> None:
    """Writes the history record, before the entry that adopts: a second attempt after a kill uses the same name."""
    record = ActionRecord(
        seq=facts.left,
        kind="relocate",
        ended_at=facts.at,
        by=facts.by,
        reason=facts.reason,
        facts={"source": relocation.source, "from": relocation.old, "to": relocation.new, "request_id": facts.request},
    )
    write_action(root.storage, record, digest)


def _store_log(storage: Storage, folder: str, file: SourceFile, logs: Mapping[str, bytes]) -> SourceFile:
    content = logs.get(file.path)
    if content is None:
        return file
    if len(content) <= INLINE_LIMIT:
        return SourceFile(path=file.path, content=content)
    key = f"{folder}sources-{file.path.replace('/', '-')}"
    return SourceFile(path=file.path, handle=write_bytes(storage, key, content))


@dataclass(frozen=True)
class FolderMove:
    """The old and new path of a folder that was moved; both are absolute local paths."""

    old: PurePosixPath
    new: PurePosixPath

    def path(self, old: PurePosixPath) -> Path:
        """Returns the new path of a file. Raises ValueError for a file that is not in the old folder."""
        return Path(self.new / old.relative_to(self.old))

    def uri(self, old: str) -> str:
        """Returns the new URI of a file. The part below the folder is kept unchanged: Spark compares text."""
        below = len(_path_of_uri(old).relative_to(self.old).parts)
        tail = old.split("/")[-below:] if below else []
        return "/".join([file_uri(self.new), *tail])


@dataclass(frozen=True)
class LoggedFile:
    """A file in the log of files that were read.

    Attributes:
        path: its path when it was read.
        modified: its modification time when it was read, in milliseconds since 1970.
    """

    path: PurePosixPath
    modified: int


def _path_of_uri(uri: str) -> PurePosixPath:
    """Returns the path of a local file from Spark's URI. Raises ConfigError for a file that is not local."""
    try:
        parts = urlsplit(uri)
    except ValueError as e:
        raise CorruptFile("an entry of Spark's source log has no valid path", path=uri[:200]) from e
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise ConfigError(
            "only files of this host's file systems can be relocated",
            hint="keep the old address; or set the position: stateflow restore with --source UID=earliest",
            file=uri,
        )
    return PurePosixPath(unquote(parts.path))


def parse_logged_files(log: bytes, name: str) -> list[LoggedFile]:
    """Returns the files of one entry of the source's log. Raises CorruptFile when it cannot be parsed."""
    files = (decode_logged_file(line, file=name) for line in log.split(b"\n") if line.startswith(b"{"))
    return [LoggedFile(_path_of_uri(file.path), file.timestamp) for file in files]


def relocate_log(log: bytes, name: str, move: FolderMove) -> bytes:
    """Returns an entry of the log with every path replaced, and all else unchanged.

    Raises:
        ConfigError: a file is not in the folder.
        CorruptFile: the entry cannot be parsed.
    """
    lines = log.split(b"\n")
    for number, line in enumerate(lines):
        if line.startswith(b"{"):
            file = decode_logged_file(line, file=name)
            try:
                moved = move.uri(file.path)
            except ValueError as e:
                raise ConfigError(
                    "the source has read a file outside of the moved folder",
                    hint="relocate a folder that contains all of its files",
                    file=file.path,
                    folder=str(move.old),
                ) from e
            lines[number] = msgspec.json.encode(replace(file, path=moved))
    return b"\n".join(lines)


def relocate_description(description: str, old: str, new: str) -> str | None:
    """Returns the description of a file source after its folder was moved; None when it does not read from `old`.

    Args:
        old: the folder as in the job file, or a parent of it.
    """
    head, colon, rest = description.removesuffix("]").partition(":")
    if not (head.startswith("FileSource[") and colon and description.endswith("]")):
        return None
    folder = old.rstrip("/")
    below = rest.removeprefix(folder)
    if not rest.startswith(folder) or (below and not below.startswith("/")):
        return None
    return f"{head}:{new.rstrip('/')}{below}]"
