"""Unreadable input files: finds them in Spark's error texts, and distinguishes them from transient failures."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal
from urllib.parse import quote, unquote

from stateflow.errors import BatchFailed, CorruptInput, StateflowError

OnCorruptFile = Literal["fail", "quarantine"]
FAIL, QUARANTINE = "fail", "quarantine"

_READING = re.compile(r"\[FAILED_READ_FILE\.(?P<kind>\w+)\]\s+Encountered error while reading file (?P<file>\S+)\.\s")
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


@dataclass(frozen=True)
class UnreadableFile:
    """A file that Spark could not read.

    Attributes:
        file: percent-encoded URI, as in Spark's source log.
        reason: Spark's text of the innermost cause.
        is_corrupt: whether the cause is the file's content; otherwise a retry may succeed.
        was_deleted: whether the file was deleted after Spark had listed it.
    """

    file: str
    reason: str
    is_corrupt: bool
    was_deleted: bool = False

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
        return BatchFailed(
            "an input file could not be read because of a transient failure",
            hint="check the storage and its permissions; a new run continues from the last checkpoint",
            file=self.path,
            reason=self.reason,
        )


def hint_for(reason: str, otherwise: str) -> str:
    """Returns the hint for a file that Spark cannot read for `reason`; `otherwise` if there is no specific one."""
    return _MICROSECONDS if NANOSECONDS in reason else otherwise


def plain_path(uri: str) -> str:
    """Returns a percent-encoded URI for display: the path of a local file, else the decoded URI."""
    return re.sub(r"^file:/+", "/", unquote(uri))


def unreadable_in(text: str) -> UnreadableFile | None:
    """Returns the unreadable file that Spark names in an error text; None if it names none."""
    found = _READING.search(text)
    if found is None:
        return None
    causes = [match["cause"].strip() for match in _CAUSE.finditer(text, found.end())]
    was_deleted = found["kind"] == "FILE_NOT_EXIST"
    is_transient = found["kind"] == "UNSUPPORTED_FILE_SYSTEM" or any(map(_TRANSIENT.search, causes))
    return UnreadableFile(found["file"], _reason(text, found, causes), not (was_deleted or is_transient), was_deleted)


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
