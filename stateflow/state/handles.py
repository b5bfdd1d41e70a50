"""References to stored state and to written output: what tasks report, and what manifests and log entries keep."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from stateflow.errors import ConfigError
from stateflow.keygroups import KeyGroupRange
from stateflow.settings import BACKENDS


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """Base of everything stored. Unknown fields are ignored on reading, and new ones have defaults."""


@dataclass(frozen=True)
class EarliestTimers:
    """In milliseconds since 1970; no pending timer is earlier, and None says that there is none at all."""

    event: int | None = None
    processing: int | None = None

    def due(self, watermark: int | None, now: int) -> bool:
        """Whether a timer may be due."""
        return is_due(self.event, watermark) or is_due(self.processing, now)


def is_due(time: int | None, now: int | None) -> bool:
    """Whether a timer of that time, if any, is due, if there is a time at all."""
    return time is not None and now is not None and time <= now


class FileHandle(Document, frozen=True, kw_only=True):
    """A reference to one immutable stored file."""

    key: str
    size: int
    sha256: str


class FilePart(Document, frozen=True, kw_only=True):
    """Where a file is within a stored object that holds several."""

    offset: int
    size: int
    sha256: str


class StateFile(Document, frozen=True, kw_only=True):
    """A file of one subtask's state: what it is stored as, and what its backend calls it."""

    handle: FileHandle
    """The stored object: this file alone, or several, one behind the other."""
    local_name: str
    part: FilePart | None = None
    """Which part of the object it is; None when it is all of it."""

    @property
    def size(self) -> int:
        """Of the file, in bytes."""
        return self.part.size if self.part else self.handle.size

    @property
    def sha256(self) -> str:
        """Of the file's bytes."""
        return self.part.sha256 if self.part else self.handle.sha256


class TypeNode(Document, frozen=True, kw_only=True):
    """A type, or a part of one, as the bytes of its values depend on it."""

    kind: str
    """``int``, ``list``, ``numpy.int32``, ``class``, … as ``docs/format.md`` lists them."""
    parts: list[TypeNode] = []
    """What a container or a union is made of; a dict's key, then its value."""
    class_index: int = -1
    """Which of the schema's classes, when it is one."""
    choices: list[str] = []
    """The values of an enum or a literal, as JSON."""
    limits: dict[str, int | float | str | bool] = {}
    """What is asked of values besides, by msgspec's names."""


class FieldSchema(Document, frozen=True, kw_only=True):
    """One field of a stored class."""

    name: str
    """As it is stored."""
    type: TypeNode
    required: bool = True
    default: str = ""
    """As JSON; empty when there is none."""


class ClassSchema(Document, frozen=True, kw_only=True):
    """A class with fields."""

    name: str
    """For people; it can change."""
    fields: list[FieldSchema]
    positional: bool = False
    """Whether values are arrays, without names of fields."""
    closed: bool = False
    """Whether fields that it does not know are refused."""
    tag: str = ""
    """What values carry besides their fields."""
    sparse: bool = False
    """Whether values may lack fields that are not required."""


class TypeSchema(Document, frozen=True, kw_only=True):
    """How values are stored."""

    root: TypeNode
    classes: list[ClassSchema] = []
    serializer: str = ""
    """Name of the job's own serializer that wrote them; empty for msgpack of the type."""
    serializer_version: int = 0


class StateSchema(Document, frozen=True, kw_only=True):
    """One declared state: what a reader must know before it looks at a value."""

    name: str
    kind: str
    value_type: str
    key_type: str = ""
    queryable: str = ""
    """The name under which it can be asked for; empty if it cannot."""
    ttl_time: str = ""
    """Which time its entries live in, ``processing`` or ``event``; empty when they live for ever."""
    ttl_since: int | None = None
    """Since when, in milliseconds of that time; None before there was a watermark."""
    ttl_always: bool = False
    """Whether it has lived in event time in every batch: no entry is older than its time to live."""
    ttl_index: bool = False
    """Whether there may be expiry entries: it has a time to live, or had one."""
    ttl_other_index: bool = False
    """Whether there may be some of the other kind of time: it lived in that before."""
    type: TypeSchema | None = None
    """How values are written; None in what was written before it was recorded."""
    earlier: list[TypeSchema] = []
    """How values were written before, oldest first: each stored value is of one of these types, or of `type`."""


class SubtaskState(Document, frozen=True, kw_only=True):
    """The state of one subtask of an operator at a barrier."""

    subtask: int
    first_group: int
    last_group: int
    snapshot: str
    """Unique name of the local snapshot: a store that is exactly this may be used again without restoring."""
    files: list[StateFile] = []
    backend: str = "rocksdb"
    """The backend that wrote it."""
    inline: bytes | None = None
    """All of the state, when it is not in files."""
    store_manifest: bytes = b""
    """What a RocksDB says of the files; in older snapshots that is a file itself."""
    event_timer: int | None = None
    """No pending event-time timer is earlier; None when there is none."""
    processing_timer: int | None = None
    """The same of processing-time timers."""

    @property
    def has_store(self) -> bool:
        """Whether there is a store to open: one may have no file any more, and still say so."""
        return bool(self.files or self.store_manifest)

    @property
    def groups(self) -> KeyGroupRange:
        """The key groups that the subtask owned."""
        return KeyGroupRange(self.first_group, self.last_group)

    @property
    def earliest_timers(self) -> EarliestTimers:
        """When the next timers are due."""
        return EarliestTimers(self.event_timer, self.processing_timer)


class OperatorContent(Document, frozen=True, kw_only=True):
    """What a subtask keeps of operator state, as msgpack: elements and entries are encoded one by one."""

    lists: dict[str, list[bytes]] = {}
    """Elements of even-split lists, by name."""
    unions: dict[str, list[bytes]] = {}
    """The subtask's own elements of union lists."""
    broadcasts: dict[str, dict[bytes, bytes]] = {}
    """Entries of broadcast states; subtask 0 keeps them for all."""
    raw: list[bytes] = []
    """Partitions of the raw operator state."""
    raw_keyed: list[tuple[int, bytes]] = []
    """Key groups and their raw state, in order."""


class OperatorPart(Document, frozen=True, kw_only=True):
    """The operator state of one subtask: an `OperatorContent`, in the manifest itself or in a file."""

    subtask: int
    content: bytes = b""
    handle: FileHandle | None = None


@dataclass(frozen=True)
class Base:
    """What a subtask starts from.

    Attributes:
        subtask: its number.
        owned: its key groups.
        parts: the stored states that have some of them, in order of key groups.
    """

    subtask: int
    owned: KeyGroupRange
    parts: tuple[SubtaskState, ...] = ()

    @classmethod
    def of(cls, state: SubtaskState) -> Base:
        """The base of the subtask that `state` was written by."""
        return cls(state.subtask, state.groups, (state,))

    @property
    def own(self) -> SubtaskState | None:
        """The state of this very subtask, with all of its key groups; None when there is no state, or the state was
        written at another parallelism."""
        same = [p for p in self.parts if (p.subtask, p.groups) == (self.subtask, self.owned)]
        return same[0] if same else None

    @property
    def earliest_timers(self) -> EarliestTimers:
        """When the next timers of all parts are due, those for other subtasks included."""
        return EarliestTimers(
            min((p.event_timer for p in self.parts if p.event_timer is not None), default=None),
            min((p.processing_timer for p in self.parts if p.processing_timer is not None), default=None),
        )

    @property
    def rescales(self) -> bool:
        """Whether the state has to be laid out anew."""
        return bool(self.parts) and self.own is None


def check_known(states: Iterable[SubtaskState]) -> None:
    """Raises ConfigError for state of a backend that this version does not have."""
    unknown = sorted({s.backend for s in states} - set(BACKENDS))
    if unknown:
        raise ConfigError("state was written by a backend that this version does not have", hint="use the version of "
                          "stateflow that wrote it", found=unknown, known=list(BACKENDS))  # fmt: skip


class Committable(Document, frozen=True, kw_only=True):
    """A file that a sink wrote and nobody sees until it is published."""

    path: str
    """Relative to the table."""
    size: int
    rows: int
    stats: str = ""
    """Statistics as the sink's table format has them in a commit."""
