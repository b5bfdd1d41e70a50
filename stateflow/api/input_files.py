"""Input files that cannot be read: recognised in the text of Spark's errors, and told apart from passing failures."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote

from stateflow.errors import BatchFailed, CorruptInput, StateflowError

OnCorruptFile = Literal["fail", "quarantine"]
FAIL, QUARANTINE = "fail", "quarantine"

_READING = re.compile(
    r"\[FAILED_READ_FILE\.(?P<kind>\w+)\]\s+Encountered error while reading file (?P<file>\S+)\.\s"
)
_CAUSE = re.compile(r"^Caused by: (?P<cause>[^\n]*)", re.MULTILINE)
_PASSING = re.compile(
    r"java\.net\.|javax\.net\.|InterruptedIOException|TimeoutException|AccessControlException|AccessDenied"
    r"|FileNotFoundException|NoSuchFileException|BlockMissingException|OutOfMemoryError|StackOverflowError"
    r"|fs\.s3a|amazonaws|software\.amazon|com\.google\.cloud|com\.azure|fs\.azurebfs|hadoop\.ipc"
    r"|[Pp]ermission denied|Input/output error|Too many open files|No space left|Stale file handle"
)  # fmt: skip
"""Causes that say nothing about a file's bytes: storage, network, rights, memory."""
NANOSECONDS = "TIMESTAMP(NANOS"
"""In Spark's words, the type of a Parquet column that it does not read."""
_MICROSECONDS = (
    "Spark does not read timestamps in nanoseconds: write microseconds, in pandas e.g. "
    'df["time"] = df["time"].astype("datetime64[us]")'
)
_PY4J_CALL = "An error occurred while calling"
_REASON_CHARACTERS = 500


@dataclass(frozen=True)
class UnreadableFile:
    """A file that Spark could not read.

    Attributes:
        file: URI as Spark's source log has it, percent-encoded.
        reason: the innermost cause that names one, in Spark's words.
        is_corrupt: whether the cause is the file's content; otherwise another try may succeed.
        is_gone: whether the file vanished after Spark had listed it.
    """

    file: str
    reason: str
    is_corrupt: bool
    is_gone: bool = False

    @property
    def path(self) -> str:
        """The file for people: a path when it is local, else the URI."""
        return plain_path(self.file)

    def error(self) -> StateflowError:
        """CorruptInput for a corrupt file, BatchFailed for one that may be readable at the next try."""
        if self.is_corrupt:
            return CorruptInput(
                "an input file cannot be read", hint=hint_for(self.reason, "replace or remove the file and start "
                "again, or let such files be skipped and recorded: FileSource(…, on_corrupt_file=\"quarantine\")"),
                file=self.path, reason=self.reason,
            )  # fmt: skip
        if self.is_gone:
            return BatchFailed("an input file vanished after it was listed and before it was read", hint="a new run "
                               "lists the folder again; files must stay until a checkpoint has read them",
                               file=self.path)  # fmt: skip
        return BatchFailed("an input file could not be read this time", hint="look at the storage and its rights; a "
                           "new run starts from the last checkpoint", file=self.path, reason=self.reason)  # fmt: skip


def hint_for(reason: str, otherwise: str) -> str:
    """What to do about a file that Spark cannot read for this reason."""
    return _MICROSECONDS if NANOSECONDS in reason else otherwise


def plain_path(uri: str) -> str:
    """A percent-encoded URI for people: the path of a local file, another one decoded."""
    return re.sub(r"^file:/+", "/", unquote(uri))


def unreadable_in(text: str) -> UnreadableFile | None:
    """The file that Spark names in the text of an error as the one it could not read; None when it names none."""
    found = _READING.search(text)
    if found is None:
        return None
    causes = [match["cause"].strip() for match in _CAUSE.finditer(text, found.end())]
    is_gone = found["kind"] == "FILE_NOT_EXIST"
    passing = found["kind"] == "UNSUPPORTED_FILE_SYSTEM" or any(map(_PASSING.search, causes))
    return UnreadableFile(found["file"], _reason(text, found, causes), not (is_gone or passing), is_gone)


def _reason(text: str, found: re.Match[str], causes: list[str]) -> str:
    """The last cause; without any, what Spark says after the file's name."""
    if causes:
        return causes[-1][:300]
    rest = text[found.end() :].strip().partition("\n")[0]
    return (rest.partition("SQLSTATE")[0].strip() or found["kind"])[:300]


def reason_in(error: BaseException) -> str:
    """Returns the first line of an error that says what happened.

    The first line of an error that comes from Py4J names only the call, and the number of an object, which differs from
    one try to the next.
    """
    lines = [line.strip() for line in str(error).strip().splitlines()] or [""]
    if len(lines) > 1 and lines[0].startswith(_PY4J_CALL):
        return lines[1].lstrip(": ")[:_REASON_CHARACTERS]
    return lines[0][:_REASON_CHARACTERS]
