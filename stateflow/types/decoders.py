"""Decoders of declared types, which threads may share, and the decoding of JSON with a bound for memory.

msgspec analyzes a class when it is decoded for the first time, and attaches the result to the class before it is
complete. Another thread that decodes the same class concurrently uses the incomplete result, and the process crashes
with SIGSEGV: this happened in one of a thousand garbage collections, whose threads read manifests. Once a decoder is
created, its type and all member types are analyzed. So obtain every decoder of a declared type from this module.

Another user may have written a document of JSON, of which two bytes can become an object of hundreds of bytes in
memory. So `decode_json` computes an upper bound of the decoded size from the characters that create objects; if that
bound is too high, a child process decodes the document first.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import msgspec

from stateflow.process_limits import ChildLimits, failure_of

T = TypeVar("T")
D = TypeVar("D")


# Reentrant, since hooks and annotations of a type may request a decoder themselves.
_lock = threading.RLock()
_json: dict[type, msgspec.json.Decoder[Any]] = {}
_msgpack: dict[type, msgspec.msgpack.Decoder[Any]] = {}


def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Returns the decoder of JSON for a type; the same object for each call."""
    return _json.get(kind) or _get_or_create(_json, kind, msgspec.json.Decoder)


def msgpack_decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]:
    """Returns the decoder of msgpack for a type; the same object for each call."""
    return _msgpack.get(kind) or _get_or_create(_msgpack, kind, msgspec.msgpack.Decoder)


def _get_or_create(known: dict[type, D], kind: type, make: Callable[[type], D]) -> D:
    with _lock:
        return known.setdefault(kind, make(kind))


def value_decoder(kind: Any, from_builtin: Callable[[type, object], object]) -> msgspec.msgpack.Decoder[Any]:
    """Returns a new decoder of msgpack for a type of a job.

    Args:
        kind: the type.
        from_builtin: creates values of member types that msgspec does not support, from type and decoded value.

    Raises:
        TypeError: msgspec cannot decode the type.
    """
    with _lock:
        return msgspec.msgpack.Decoder(kind, dec_hook=from_builtin)


MEMORY_LIMIT = 100 << 20
"""Largest size of a document in memory, in bytes: its text, and what it is decoded into."""
_PROGRAM = "decode_program.py"
_CPU_SECONDS = 10


# Bounds of the memory that each character of a kind can cause, in bytes; tests measure them.
_OBJECT, _LIST, _ITEM, _QUOTE = 352, 144, 128, 28
_WIDE = 7
"""Bytes of memory for a byte of a text with escapes, or with characters outside of ASCII: in Python, and while the text
is unescaped."""


class TooMuchMemory(msgspec.DecodeError):
    """Decoding a document would take more memory than `MEMORY_LIMIT`."""


def decode_json(kind: type[T], data: bytes, end: int | None = None) -> T:
    """Returns the document in `data[:end]`.

    Args:
        kind: type of the document.
        data: the text.
        end: its length in bytes; None for all of `data`.

    Raises:
        TooMuchMemory: decoding would exceed `MEMORY_LIMIT`.
        msgspec.DecodeError, UnicodeDecodeError, RecursionError: the text is not a document of this type.
    """
    check_decoded_size(kind, data)
    return json_decoder(kind).decode(memoryview(data)[:end])


def check_decoded_size(kind: Any, data: bytes) -> None:
    """Raises TooMuchMemory when decoding a document of JSON would exceed `MEMORY_LIMIT`.

    Args:
        kind: type of the document. Only a class that a module defines, or a list of one, is decoded in a child process;
            for other types the bound alone decides.
        data: the text; may have more lines after it.
    """
    if largest_size(data) <= MEMORY_LIMIT:
        return
    name = _importable(kind)
    if len(data) >= MEMORY_LIMIT or name is None:
        raise TooMuchMemory("decoding it could take too much memory")
    program = resources.files(__package__).joinpath(_PROGRAM).read_text()
    folders = (Path(__file__).parents[1], Path(msgspec.__file__).parents[1])
    reason = failure_of(program, (len(data), *folders, *name), ChildLimits(MEMORY_LIMIT, _CPU_SECONDS), data)
    if reason:
        raise TooMuchMemory(reason)


def largest_size(data: bytes) -> int:
    """Returns an upper bound of the bytes that a document takes in memory, with its text."""
    objects = _OBJECT * data.count(b"{") + _LIST * data.count(b"[") + _ITEM * data.count(b",")
    is_plain = data.isascii() and b"\\" not in data
    return objects + _QUOTE * data.count(b'"') + len(data) * (2 if is_plain else 1 + _WIDE)


def _importable(kind: Any) -> tuple[str, ...] | None:
    """Returns module and name of a class, followed by ``list`` for a list of its instances; None for other types."""
    is_list = ("list",) if get_origin(kind) is list else ()
    inner = get_args(kind)[0] if is_list else kind
    if not isinstance(inner, type):
        return None
    module, name = inner.__module__, inner.__qualname__
    return (module, name, *is_list) if getattr(sys.modules.get(module), name, None) is inner else None
