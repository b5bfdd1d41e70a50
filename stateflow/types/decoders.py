"""Thread-safe creation of msgspec decoders.

msgspec analyzes a class when it is decoded for the first time, and attaches the result to the class before it is
complete. Another thread that decodes the same class concurrently uses the incomplete result, and the process crashes
with SIGSEGV: this happened in one of a thousand garbage collections, whose threads read manifests. Once a decoder is
created, its type and all member types are analyzed. So obtain every decoder of a declared type from this module.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

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
