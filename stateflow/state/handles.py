"""References to stored state and written output, which tasks report and manifests and log entries contain."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import msgspec

from stateflow.config.settings import BACKENDS
from stateflow.errors import ConfigError, CorruptFile
from stateflow.types.key_groups import MAX_PARALLELISM_LIMIT, KeyGroupRange

CANONICAL = "canonical"
"""In place of the backend's name: state in the format that is independent of backends."""

Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""A number in a document that tasks receive: JSON has larger ones, which msgpack cannot encode."""
KeyGroup = Annotated[int, msgspec.Meta(ge=0, lt=MAX_PARALLELISM_LIMIT)]
Parallelism = Annotated[int, msgspec.Meta(ge=1, le=MAX_PARALLELISM_LIMIT)]


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of stored documents. Readers ignore unknown fields; new fields have defaults."""


@dataclass(frozen=True)
class EarliestTimers:
    """Lower bounds for the times of pending timers, in milliseconds since 1970; None without timers."""

    event: int | None = None
    processing: int | None = None

    def due(self, watermark: int | None, now: int) -> bool:
        """Returns whether a timer may be due at a watermark and a processing time."""
        return is_due(self.event, watermark) or is_due(self.processing, now)


def is_due(time: int | None, now: int | None) -> bool:
    """Returns whether a timer at `time` is due at `now`; False if either is None."""
    return time is not None and now is not None and time <= now


class FileHandle(Document, frozen=True, kw_only=True, gc=False):
    """A reference to one immutable stored file."""

    key: str
    size: Int64
    sha256: str


class FilePart(Document, frozen=True, kw_only=True, gc=False):
    """The position of a file within a stored object that contains several."""

    offset: Int64
    size: Int64
    sha256: str


class StateFile(Document, frozen=True, kw_only=True, gc=False):
    """A file of one subtask's state: its stored object and its name in the store."""

    handle: FileHandle
    """The stored object: this file alone, or several concatenated files."""
    local_name: str
    part: FilePart | None = None
    """The part of the object; None for the whole object."""

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return self.part.size if self.part else self.handle.size

    @property
    def sha256(self) -> str:
        """SHA-256 of the file in hexadecimal."""
        return self.part.sha256 if self.part else self.handle.sha256


def check_position(handle: FileHandle, part: FilePart) -> None:
    """Raises CorruptFile unless a part is within its object.

    A negative size would read the whole object at once, and a negative position is an error that is retried.
    """
    if not 0 <= part.offset <= part.offset + part.size <= handle.size:
        raise CorruptFile(
            "a file is recorded as a part beyond the end of its object",
            hint="restore an older checkpoint",
            file=handle.key,
            offset=part.offset,
            size_bytes=part.size,
            object_bytes=handle.size,
        )


class TypeNode(Document, frozen=True, kw_only=True):
    """A type or a part of one, with everything that its stored bytes depend on."""

    kind: str
    """``int``, ``list``, ``numpy.int32``, ``class``, … as ``docs/format.md`` lists them."""
    parts: list[TypeNode] = []
    """The member types of a container or a union; of a dict the key, then the value."""
    class_index: Int64 = -1
    """Index into the schema's classes; -1 for other kinds."""
    choices: list[str] = []
    """The values of an enum or a literal, as JSON."""
    limits: dict[str, Int64 | float | str | bool] = {}
    """Constraints on values, by msgspec's names."""


class FieldSchema(Document, frozen=True, kw_only=True):
    """One field of a stored class."""

    name: str
    """The stored name."""
    type: TypeNode
    required: bool = True
    default: str = ""
    """JSON of the default; empty without one."""


class ClassSchema(Document, frozen=True, kw_only=True):
    """A class with fields."""

    name: str
    """For display only; it may change."""
    fields: list[FieldSchema]
    positional: bool = False
    """Whether values are stored as arrays, without field names."""
    closed: bool = False
    """Whether unknown fields are refused."""
    tag: str = ""
    """Tag field and value stored with each value; empty without one."""
    sparse: bool = False
    """Whether stored values may omit fields that are not required."""


class TypeSchema(Document, frozen=True, kw_only=True):
    """The stored form of a state's values."""

    root: TypeNode
    classes: list[ClassSchema] = []
    serializer: str = ""
    """Name of the custom serializer that wrote them; empty for msgpack."""
    serializer_version: Int64 = 0


class StateSchema(Document, frozen=True, kw_only=True):
    """A declared state, with everything needed to read its values."""

    name: str
    kind: str
    value_type: str
    key_type: str = ""
    queryable: str = ""
    """The name for queries from outside the job; empty if the state is not queryable."""
    windows: str = ""
    """Kind of windows of its namespaces, such as ``sessions of event time``; empty for other states."""
    arguments: str = ""
    """The arguments of the operator that its values depend on; empty if they depend on none."""
    ttl_time: Annotated[str, msgspec.Meta(pattern=r"\A(processing|event)?\Z")] = ""
    """The time domain of its TTL, ``processing`` or ``event``; empty without a TTL."""
    ttl_milliseconds: Int64 = 0
    """Its TTL; 0 without one."""
    ttl_since: Int64 | None = None
    """The time since which the state has had a TTL in this time domain, in milliseconds since 1970; the TTL of older
    entries counts from here. None before the first watermark."""
    ttl_always: bool = False
    """Set when the state was created with an event-time TTL and has kept one in every batch since. An entry's timestamp
    is then always that of its own write, and its TTL counts from it even if it is before `ttl_since`. When not set,
    the TTL of every entry counts from `ttl_since` at the earliest."""
    ttl_index: bool = False
    """Whether expiry entries may exist: the state has a TTL, or had one."""
    ttl_other_index: bool = False
    """Whether expiry entries of the other time domain may exist: its TTL had that domain before."""
    type: TypeSchema
    """The type of values written now."""
    earlier: list[TypeSchema] = []
    """The types of values written before, oldest first. Each stored value has one of these types, or `type`."""


class SubtaskState(Document, frozen=True, kw_only=True):
    """The state of one subtask of an operator at a barrier."""

    subtask: Int64
    first_group: KeyGroup
    last_group: KeyGroup
    snapshot: str
    """Unique name of the local snapshot. An open store with exactly this content may be reused without restoring."""
    files: list[StateFile] = []
    backend: str = "rocksdb"
    """The backend that wrote it."""
    inline: bytes | None = None
    """The whole state if it is not in files."""
    store_manifest: bytes = b""
    """RocksDB's manifest for the files; empty for other backends."""
    event_timer: Int64 | None = None
    """Lower bound for the times of event-time timers, in milliseconds since 1970; None without timers."""
    processing_timer: Int64 | None = None
    """The same for processing-time timers."""
    ttl_cleanup_at: Int64 | None = None
    """When the subtask removes expired entries even without rows, in milliseconds since 1970; the highest value if no
    entry can expire. None without a TTL in processing time."""
    entries: Int64 | None = None
    """Number of its entries: an estimate for RocksDB, else exact. For statistics only; None if it is not known."""
    live_entries: Int64 | None = None
    """At least so many entries are neither overwritten nor deleted. For statistics only; None if it is not known."""
    live_bytes: Int64 | None = None
    """About the bytes of these entries."""

    @property
    def size_bytes(self) -> int:
        """Size of its files and of its inline state."""
        return sum(file.size for file in self.files) + len(self.inline or b"")

    @property
    def has_store(self) -> bool:
        """Whether there is a store to open; a store without files still has a manifest."""
        return bool(self.files or self.store_manifest)

    @property
    def groups(self) -> KeyGroupRange:
        """The key groups that the subtask owned."""
        return KeyGroupRange(self.first_group, self.last_group)

    @property
    def earliest_timers(self) -> EarliestTimers:
        """Lower bounds for the times of the timers."""
        return EarliestTimers(self.event_timer, self.processing_timer)


RawKeyed = Annotated[list[tuple[KeyGroup, bytes]], msgspec.Meta(max_length=MAX_PARALLELISM_LIMIT)]
"""Raw keyed state as (key group, bytes) pairs."""


class OperatorContent(Document, frozen=True, kw_only=True):
    """The operator state that a subtask stores; elements and entries are msgpack, encoded one by one."""

    lists: dict[str, list[bytes]] = {}
    """Elements of even-split lists by name."""
    unions: dict[str, list[bytes]] = {}
    """The subtask's own elements of union lists by name."""
    broadcasts: dict[str, dict[bytes, bytes]] = {}
    """Entries of broadcast states by name; subtask 0 stores them for all subtasks."""
    raw: list[bytes] = []
    """Partitions of the raw operator state."""
    raw_keyed: RawKeyed = []
    """In order of key groups."""


class OperatorPart(Document, frozen=True, kw_only=True):
    """The operator state of one subtask: an `OperatorContent`, in the manifest or in a file."""

    subtask: Int64
    content: bytes = b""
    handle: FileHandle | None = None
    memory: int
    """A bound of the bytes of memory that it takes when it is read."""


@dataclass(frozen=True)
class Base:
    """The state that a subtask starts from.

    Attributes:
        subtask: number of the subtask.
        owned: its key groups.
        parts: the stored states that overlap them, in order of key groups.
    """

    subtask: int
    owned: KeyGroupRange
    parts: tuple[SubtaskState, ...] = ()

    @classmethod
    def of(cls, state: SubtaskState) -> Base:
        """Returns the base of the subtask that wrote `state`."""
        return cls(state.subtask, state.groups, (state,))

    @property
    def own(self) -> SubtaskState | None:
        """The state that this subtask wrote for the same key groups; None without state or after rescaling."""
        same = [p for p in self.parts if (p.subtask, p.groups) == (self.subtask, self.owned)]
        return same[0] if same else None

    @property
    def earliest_timers(self) -> EarliestTimers:
        """Lower bounds for the times of the timers of all parts, including those for other subtasks."""
        return EarliestTimers(
            min((p.event_timer for p in self.parts if p.event_timer is not None), default=None),
            min((p.processing_timer for p in self.parts if p.processing_timer is not None), default=None),
        )

    @property
    def ttl_cleanup_at(self) -> int | None:
        """When the subtask removes expired entries even without rows, in milliseconds; None if that is not known."""
        return min((p.ttl_cleanup_at for p in self.parts if p.ttl_cleanup_at is not None), default=None)

    @property
    def rescales(self) -> bool:
        """Whether the state was written at another parallelism and must be redistributed."""
        return bool(self.parts) and self.own is None


def check_backends_known(states: Iterable[SubtaskState]) -> None:
    """Raises ConfigError for state written by a backend that this version does not have."""
    unknown = sorted({s.backend for s in states} - {*BACKENDS, CANONICAL})
    if unknown:
        raise ConfigError(
            "state was written by a backend that this version does not have",
            hint="use the version of stateflow that wrote it",
            found=unknown,
            known=list(BACKENDS),
        )


class Committable(Document, frozen=True, kw_only=True):
    """A file written by a sink, which becomes visible when it is published."""

    path: str
    """Relative to the table."""
    size: int
    rows: int
    stats: str = ""
    """Statistics in the format of the sink's table commits."""
