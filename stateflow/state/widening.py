"""Whether a type that is made of no others takes all values of another. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from stateflow.state.handles import TypeNode

_FAMILIES = [{"list", "vartuple"}, {"set", "frozenset"}, {"bool", "numpy.bool"}, {"float", "numpy.float64"}]
"""Kinds whose values are stored in the same way."""
_PLAIN = {"none", "bool", "int", "float", "str", "bytes"}
"""Kinds that come back as what they are when they are read as any."""
_EXACT = {"float": 53, "numpy.float64": 53, "numpy.float32": 24}
"""Bits that a floating point number keeps of a whole one."""


def _integers() -> Iterator[tuple[str, tuple[int, int]]]:
    yield "int", (-(1 << 63), (1 << 64) - 1)
    for bits in (8, 16, 32, 64):
        yield f"numpy.int{bits}", (-(1 << bits - 1), (1 << bits - 1) - 1)
        yield f"numpy.uint{bits}", (0, (1 << bits) - 1)


_INTEGERS = dict(_integers())


def alike(old: TypeNode, new: TypeNode) -> bool:
    """Whether both are of one kind, or of kinds that are stored in the same way."""
    return old.kind == new.kind or any({old.kind, new.kind} <= family for family in _FAMILIES)


def widening(old: TypeNode, new: TypeNode) -> str | None:
    """What to tell of a type that is read as a wider one; None when it is not wider."""
    if new.kind == "any":
        return "" if old.kind in _PLAIN else None
    if old.kind == "numpy.float32" and new.kind in ("float", "numpy.float64"):
        return "" if not new.limits else None
    numbers = _range(old)
    if numbers is None or (new.limits and new.kind not in _INTEGERS):
        return None
    if new.kind == "decimal":
        return ""
    if new.kind in _EXACT:
        exact = max(map(abs, numbers)) <= 1 << _EXACT[new.kind]
        if exact or new.kind != "numpy.float32":
            return "" if exact else "; beyond 2**53 it is rounded"
        return None
    wider = _range(new)
    return "" if wider and wider[0] <= numbers[0] and numbers[1] <= wider[1] else None


def _range(node: TypeNode) -> tuple[int, int] | None:
    """The whole numbers that a type holds; None when it is none of these, or has other limits."""
    found = _INTEGERS.get(node.kind)
    if found is None or node.limits.keys() - {"ge", "le"}:
        return None
    low, high = node.limits.get("ge", found[0]), node.limits.get("le", found[1])
    return (low, high) if isinstance(low, int) and isinstance(high, int) else None


def limits_hold(old: TypeNode, new: TypeNode) -> bool:
    """Whether each limit was there before, at least as narrow."""
    for name, limit in new.limits.items():
        before = old.limits.get(name)
        if before is None:
            return False
        if name in ("ge", "gt", "min_length"):
            holds = limit <= before  # type: ignore[operator]
        elif name in ("le", "lt", "max_length"):
            holds = limit >= before  # type: ignore[operator]
        else:
            holds = limit == before
        if not holds:
            return False
    return True
