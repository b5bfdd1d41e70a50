"""Input files: the parts that tasks read, formats, and unreadable files, which are found in the texts of errors."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePath
from typing import BinaryIO, Literal, Protocol
from urllib.parse import quote, unquote, urlsplit

import msgspec
import pyarrow as pa

from stateflow.api.schema import RowSchema
from stateflow.errors import BatchFailed, CorruptInput, MissingFile, StateflowError, StorageError
from stateflow.storage import Storage, open_object
from stateflow.types.declared_types import literal
from stateflow.types.decoders import msgpack_decoder

OnCorruptFile = Literal["fail", "quarantine"]
FAIL, QUARANTINE = "fail", "quarantine"

_READING = re.compile(r"\[FAILED_READ_FILE\.(?P<kind>\w+)\]\s+Encountered error while reading file (?P<file>\S+)\.\s")
_MISSING = re.compile(r"\[PATH_NOT_FOUND\] Path does not exist: (?P<file>.+?)\. SQLSTATE")
"""Spark's error for a file that is gone before it is read."""
_CAUSE = re.compile(r"^Caused by: (?P<cause>[^\n]*)", re.MULTILINE)
_TRANSIENT = re.compile(
    r"java\.net\.|javax\.net\.|InterruptedIOException|TimeoutException|AccessControlException|AccessDenied"
    r"|FileNotFoundException|NoSuchFileException|BlockMissingException|OutOfMemoryError|StackOverflowError"
    r"|fs\.s3a|amazonaws|software\.amazon|com\.google\.cloud|com\.azure|fs\.azurebfs|hadoop\.ipc"
    r"|[Pp]ermission denied|Input/output error|Too many open files|No space left|Stale file handle"
)
"""Causes that do not concern a file's content: storage, network, permissions, memory."""
NANOSECONDS = "TIMESTAMP(NANOS"
"""A Parquet type that Spark does not read, as Spark's error texts name it."""
_MICROSECONDS = (
    "Spark does not read timestamps in nanoseconds: write microseconds, in pandas e.g. "
    'df["time"] = df["time"].astype("datetime64[us]")'
)
_LEGAL_IN_URI = "/_-!.~'()*,;:$&+=@"
"""Characters that Java's URI, with which Spark writes paths, does not encode, in addition to letters and digits."""
_PY4J_CALL = "An error occurred while calling"
_REASON_CHARACTERS = 500
_SHOWN_REASON = 300
_CORRUPT_MARK = re.compile(r"\[stateflow-corrupt-file:([A-Za-z0-9+/=]+)\]")
_LOST_MARK = re.compile(r"\[stateflow-lost-file:([A-Za-z0-9+/=]+)\]")
_UNFIT = re.compile(r"\[stateflow-unfit:(?P<file>\S+)\] (?P<reason>[^\n]*)")
_SCHEME = re.compile("[A-Za-z][A-Za-z0-9+.-]*:/")
_corrupt = msgpack_decoder(tuple[str, str, str])
Loss = Literal["deleted", "replaced", "unread"]
_lost = msgpack_decoder(tuple[str, str, Loss])


@dataclass(frozen=True)
class FileShare:
    """A part of a file that one task reads.

    Attributes:
        path: absolute path of a local file, or percent-encoded URI of an object.
        begin: first byte of the range whose rows belong to the share.
        end: the byte after that range. The shares of a file cover bytes 0 to `size`, or 0 to 1 if the file is empty.
        size: size of the file when the batch was planned.
        version: of an object, when the batch was planned; see `BlobInfo.version`.
    """

    path: str
    begin: int
    end: int
    size: int
    version: str = ""

    @property
    def is_object(self) -> bool:
        """Whether the file is an object, which only tasks read."""
        return not self.path.startswith("/")

    @property
    def uri(self) -> str:
        """Percent-encoded URI of the file."""
        return self.path if self.is_object else file_uri(PurePath(self.path))


class FileFormat(Protocol):
    """Reads files in tasks, without Spark. It is pickled.

    Attributes:
        splits: whether several tasks may read ranges of one file. Otherwise a share is always a whole file.
    """

    @property
    def splits(self) -> bool: ...

    def row_starts(self, path: str, positions: Sequence[int]) -> Sequence[int]:
        """Returns where the shares of a file begin that shall begin at some positions; called where files are divided.

        A format whose tasks can find out which rows belong to any range of bytes returns the positions.

        Args:
            path: absolute path of the file; never an object.
            positions: bytes of the file, in order.

        Raises:
            OSError: the file cannot be read now.
        """
        ...

    def read(self, share: FileShare, schema: RowSchema) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a share in the order of the file, as batches with the Arrow schema of `schema`.

        The shares of a file, read one after another, have each row exactly once, and in order.

        Raises:
            CannotRead: only Spark may be able to read the file as declared.
            FileChanged: the file was written again.
            LostFile: the object is gone, was replaced, or cannot be read now.
            CorruptContent: the file is not of the declared form.
            OSError: the file cannot be read now.
        """
        ...


class ListedFormat(FileFormat, Protocol):
    """Reads files that it lists itself: the path of a share is a name that only the format knows.

    Its `read` raises an error that ends the run, encoded as `message_with` does: nothing else can read the files.

    Attributes:
        sizes: names and sizes of the files, in the order of their rows.
    """

    @property
    def sizes(self) -> list[tuple[str, int]]: ...


class CannotRead(Exception):
    """A file that only Spark may be able to read as declared: it reads all further files of the source in this run."""


class FileChanged(CannotRead):
    """A file that cannot be read now, or was written again: Spark reads the files of the batch, or says why not."""


class LostFile(Exception):
    """An object that cannot be read: the batch fails, and the next run lists the source's files again.

    Args:
        uri: percent-encoded URI of the object.
        reason: why, in words.
        cause: whether it was deleted, replaced, or cannot be read now.
    """

    def __init__(self, uri: str, reason: str, cause: Loss) -> None:
        super().__init__(uri, reason, cause)
        self._uri = uri
        self._reason = reason
        self._cause = cause

    def __str__(self) -> str:
        # Spark forwards only texts of errors, with stack traces around them.
        mark = base64.b64encode(msgspec.msgpack.encode((self._uri, self._reason[:_SHOWN_REASON], self._cause))).decode()
        return f"{self._uri}: {self._reason[:_SHOWN_REASON]} [stateflow-lost-file:{mark}]"


@contextmanager
def open_object_share(share: FileShare) -> Iterator[BinaryIO]:
    """Yields the object of a share as a file.

    Raises:
        LostFile: the object is gone, cannot be read now, or is not the one that was planned: what was read of it, or an
            error of its content, may be of two objects.
    """
    try:
        storage, key = open_object(share.path)
        try:
            with storage.open(key) as file:
                yield file
        except StorageError:
            raise
        except Exception:
            _check_version(storage, key, share)
            raise
        # After all requests: versions never return, so that all of them have read this one.
        _check_version(storage, key, share)
    except MissingFile as e:
        raise LostFile(share.path, "it does not exist", "deleted") from e
    except StorageError as e:
        raise LostFile(share.path, f"{e.message}: {e.facts.get('reason', '')}", "unread") from e


def _check_version(storage: Storage, key: str, share: FileShare) -> None:
    found = storage.info(key)
    if found is None:
        raise LostFile(share.path, "it does not exist", "deleted")
    if (found.size, found.version) != (share.size, share.version or found.version):
        reason = f"it had {share.size} bytes, and another object with {found.size} bytes has its name now"
        raise LostFile(share.path, reason, "replaced")


class CorruptContent(Exception):
    """A file that is not of the declared form: the run ends with `CorruptInput`, or skips the file.

    Args:
        path: absolute path of the file, or its percent-encoded URI.
        reason: what is wrong, in words.
        position: where, such as ``"line 17"``; empty if the whole file is wrong.
    """

    def __init__(self, path: str, reason: str, position: str = "") -> None:
        super().__init__(path, reason, position)
        self.path = path
        self.reason = reason
        self.position = position

    def __str__(self) -> str:
        # Spark forwards only texts of errors, with stack traces around them.
        reason, position = self.reason[:_SHOWN_REASON], self.position[:_SHOWN_REASON]
        mark = base64.b64encode(msgspec.msgpack.encode((self.path, reason, position))).decode()
        return f"{self.path}: {_with_position(reason, position)} [stateflow-corrupt-file:{mark}]"


class UnfitFile(Exception):
    """A file whose columns Spark would read as other values: the run ends with `CorruptInput`, or skips the file.

    Args:
        file: percent-encoded URI.
        reason: what does not fit, in words.
    """

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(f"[stateflow-unfit:{file}] {reason}")


@dataclass(frozen=True)
class UnreadableFile:
    """A file that could not be read.

    Attributes:
        file: percent-encoded URI, as in Spark's source log.
        reason: the cause, as a task or the innermost exception of Spark names it.
        is_corrupt: whether the cause is the file's content; otherwise a retry may succeed.
        was_deleted: whether the file was deleted after it was listed.
        was_replaced: whether the file is an object, and another one has its name since it was listed.
        by_task: whether a task has read the file, and found that it is corrupt.
    """

    file: str
    reason: str
    is_corrupt: bool
    was_deleted: bool = False
    was_replaced: bool = False
    by_task: bool = False

    @property
    def path(self) -> str:
        """The file for display: a path if it is local, else the decoded URI."""
        return plain_path(self.file)

    def error(self) -> StateflowError:
        """Returns CorruptInput for a corrupt file, BatchFailed if a retry may succeed."""
        if self.is_corrupt:
            return CorruptInput(
                "an input file cannot be read",
                hint=hint_for(
                    self.reason,
                    "replace or remove the file and run "
                    'again, or skip and record such files: FileSource(…, on_corrupt_file="quarantine")',
                ),
                file=self.path,
                reason=self.reason,
            )
        if self.was_deleted:
            return BatchFailed(
                "an input file was deleted after it was listed and before it was read",
                hint="start a new run, which lists the folder again; keep files until a checkpoint has read them",
                file=self.path,
            )
        if self.was_replaced:
            return BatchFailed(
                "an input file was replaced after it was listed and before it was read",
                hint="start a new run, which lists the folder again; write each file once, under a name of its own",
                file=self.path,
                reason=self.reason,
            )
        return BatchFailed(
            "an input file could not be read because of a transient failure",
            hint="check the storage and its permissions; a new run continues from the last checkpoint",
            file=self.path,
            reason=self.reason,
        )


def not_text(file: str, column: str) -> str:
    """Returns the expression of the text of an error of Spark, which `unreadable_in` finds.

    Args:
        file: expression of the percent-encoded URI of the file.
        column: name of the column that has bytes that are not UTF-8.
    """
    reason = literal(f"] the column {column} has a text that is not UTF-8")
    return f"concat('[stateflow-unfit:', {file}, {reason})"


def hint_for(reason: str, otherwise: str) -> str:
    """Returns the hint for a file that Spark cannot read for `reason`; `otherwise` if there is no specific one."""
    return _MICROSECONDS if NANOSECONDS in reason else otherwise


def plain_path(uri: str) -> str:
    """Returns a percent-encoded URI for display: the path of a local file, else the decoded URI."""
    return re.sub(r"^file:/+", "/", unquote(uri))


def local_path(uri: str) -> str | None:
    """Returns the path of a local file from its percent-encoded URI; None for a file elsewhere."""
    address = urlsplit(uri)
    return unquote(address.path) if address.scheme == "file" else None


def unreadable_in(text: str) -> UnreadableFile | None:
    """Returns the unreadable file that Spark, or a task, names in an error text; None if it names none."""
    mark = _CORRUPT_MARK.search(text)
    if mark is not None:
        path, reason, position = _corrupt.decode(base64.b64decode(mark[1]))
        uri = path if _SCHEME.match(path) else file_uri(PurePath(path))
        return UnreadableFile(uri, _with_position(reason, position), is_corrupt=True, by_task=True)
    lost = _LOST_MARK.search(text)
    if lost is not None:
        uri, reason, cause = _lost.decode(base64.b64decode(lost[1]))
        return UnreadableFile(uri, reason, False, cause == "deleted", cause == "replaced", by_task=True)
    unfit = _UNFIT.search(text)
    if unfit is not None:
        return UnreadableFile(unfit["file"], unfit["reason"].partition(" SQLSTATE")[0], is_corrupt=True)
    found = _READING.search(text)
    if found is None:
        missing = _MISSING.search(text)
        return None if missing is None else UnreadableFile(missing["file"], "it does not exist", False, True)
    causes = [match["cause"].strip() for match in _CAUSE.finditer(text, found.end())]
    was_deleted = found["kind"] == "FILE_NOT_EXIST"
    is_transient = found["kind"] == "UNSUPPORTED_FILE_SYSTEM" or any(map(_TRANSIENT.search, causes))
    return UnreadableFile(found["file"], _reason(text, found, causes), not (was_deleted or is_transient), was_deleted)


def _with_position(reason: str, position: str) -> str:
    return f"{position}: {reason}" if position else reason


def _reason(text: str, found: re.Match[str], causes: list[str]) -> str:
    """Returns the last cause; if there is none, Spark's text after the file's name."""
    if causes:
        return causes[-1][:300]
    rest = text[found.end() :].strip().partition("\n")[0]
    return (rest.partition("SQLSTATE")[0].strip() or found["kind"])[:300]


def reason_in(error: BaseException) -> str:
    """Returns the first line of an error that describes the cause.

    The first line of an error from Py4J names only the call and an object number, which differs between tries.
    """
    lines = [line.strip() for line in str(error).strip().splitlines()] or [""]
    if len(lines) > 1 and lines[0].startswith(_PY4J_CALL):
        return lines[1].lstrip(": ")[:_REASON_CHARACTERS]
    return lines[0][:_REASON_CHARACTERS]


def file_uri(path: PurePath) -> str:
    """Returns the URI of an absolute local path as Spark writes it, whose file source compares URIs as text.

    Java's URI keeps characters that are neither ASCII, blank nor control characters.
    """
    encoded = (
        c if ord(c) > 127 and c.isprintable() and not c.isspace() else quote(c, safe=_LEGAL_IN_URI) for c in str(path)
    )
    return "file://" + "".join(encoded)
