"""References to stored state and to written output: what tasks report, and what manifests and log entries keep."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from stateflow.keygroups import KeyGroupRange


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """Base of everything stored. Unknown fields are ignored on reading, and new ones have defaults."""


class FileHandle(Document, frozen=True, kw_only=True):
    """A reference to one immutable stored file."""

    key: str
    size: int
    sha256: str


class StateFile(Document, frozen=True, kw_only=True):
    """A file of one subtask's state: what it is stored as, and what RocksDB calls it."""

    handle: FileHandle
    local_name: str


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
    ttl_index: bool = False
    """Whether there may be expiry entries: it has a time to live, or had one."""


class SubtaskState(Document, frozen=True, kw_only=True):
    """The state of one subtask of an operator at a barrier."""

    subtask: int
    first_group: int
    last_group: int
    snapshot: str
    """Unique name of the local snapshot: a store that is exactly this may be used again without restoring."""
    files: list[StateFile] = []

    @property
    def groups(self) -> KeyGroupRange:
        """The key groups that the subtask owned."""
        return KeyGroupRange(self.first_group, self.last_group)


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
    def rescales(self) -> bool:
        """Whether the state has to be laid out anew."""
        return bool(self.parts) and self.own is None


class Committable(Document, frozen=True, kw_only=True):
    """A file that a sink wrote and nobody sees until it is published."""

    path: str
    """Relative to the table."""
    size: int
    rows: int
    stats: str = ""
    """Statistics as the sink's table format has them in a commit."""
