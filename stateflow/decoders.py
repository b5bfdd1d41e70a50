"""Decoders of declared types, each made by one thread at a time.

msgspec looks at a class when it is decoded for the first time, and notes at the class what it has found before it has
found all. Another thread that decodes the same class at that moment uses the half of it, and the process dies by
SIGSEGV: about one collection in a thousand did, whose threads read manifests. Behind the making of a decoder everything
is known of its type and of all that the type is made of, so whoever decodes declared types asks here first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
D = TypeVar("D")

# A type's own hooks and annotations may ask for a decoder themselves.
_making = threading.RLock()
_json: dict[Any, msgspec.json.Decoder[Any]] = {}
_msgpack: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """The decoder of JSON into a type; always the same one."""
    return _json.get(kind) or _made(_json, kind, msgspec.json.Decoder)


def msgpack_decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]:
    """The decoder of msgpack into a type; always the same one."""
    return _msgpack.get(kind) or _made(_msgpack, kind, msgspec.msgpack.Decoder)


def _made(known: dict[Any, D], kind: Any, make: Callable[[Any], D]) -> D:
    with _making:
        return known.setdefault(kind, make(kind))


def value_decoder(kind: Any, from_builtin: Callable[[type, Any], Any]) -> msgspec.msgpack.Decoder[Any]:
    """A new decoder of msgpack into a type of a job, whose parts that msgspec does not know are made by a hook.

    Raises TypeError for a type that msgspec cannot decode.
    """
    with _making:
        return msgspec.msgpack.Decoder(kind, dec_hook=from_builtin)
