"""Classes of structs that are made at run time arrive in another process with their fields."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from pyspark import cloudpickle

from stateflow import precision
from stateflow.types.columns.struct_classes import prepare_struct_classes

WORKER = """
import sys
from pathlib import Path
from pyspark.serializers import CloudPickleSerializer

folder = Path(sys.argv[1])
function, given = CloudPickleSerializer().loads((folder / "sent").read_bytes())
(folder / "result").write_bytes(CloudPickleSerializer().dumps((function(given), given)))
"""
Amount = Annotated[Decimal, precision(9, scale=2)]


def _in_worker(folder: Path, function: Callable[[Any], Any], given: object) -> tuple[Any, Any]:
    """Returns what a function returns in another process, and what it was called with, each sent there and back."""
    prepare_struct_classes()
    dumps: Callable[[object], bytes] = cloudpickle.dumps
    (folder / "sent").write_bytes(dumps((function, given)))
    subprocess.run([sys.executable, "-c", WORKER, str(folder)], check=True)
    result: tuple[Any, Any] = cloudpickle.loads((folder / "result").read_bytes())
    return result


def _facts(made: type[msgspec.Struct]) -> tuple[Any, ...]:
    """What a class declares, without the class itself."""
    fields = [(f.name, f.encode_name, f.type, f.default, f.default_factory) for f in msgspec.structs.fields(made)]
    config = {name: getattr(made.__struct_config__, name) for name in dir(made.__struct_config__) if name[0] != "_"}
    return made.__name__, fields, made.__match_args__, config


CLASSES = {
    "required": msgspec.defstruct("Event", ["anything", ("number", int), ("amount", Amount | None)]),
    "defaults": msgspec.defstruct("Event", [("a", int), ("b", int | None, None), ("c", list[int], [])]),
    "required after optional": msgspec.defstruct("Event", [("a", int, 1), ("b", str)], kw_only=True),
    "tag": msgspec.defstruct("Event", [("a", int)], tag="event", tag_field="kind", frozen=True, order=True),
    "names": msgspec.defstruct("Event", [("first_name", str)], rename="camel", forbid_unknown_fields=True),
    "array": msgspec.defstruct("Event", [("a", int), ("b", float)], array_like=True, eq=False, gc=False),
    "base": msgspec.defstruct("Event", [("b", int, 2)], bases=(msgspec.defstruct("Base", [("a", int, 1)]),)),
}


def test_classes_made_at_run_time_arrive_with_their_declarations_and_no_module_is_searched_for_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Airflow's deprecated modules warn when they are asked for a name.
    asked: list[str] = []
    module = types.ModuleType("lazy")
    module.__getattr__ = asked.append  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "lazy", module)
    for name in [each for each in sys.modules if each.split(".")[0] == "msgspec"]:
        # Modules are searched in the order of their import.
        sys.modules[name] = sys.modules.pop(name)
    found, same = _in_worker(tmp_path, lambda classes: [_facts(each) for each in classes], list(CLASSES.values()))
    assert found == [_facts(each) for each in CLASSES.values()]
    assert all(a is b for a, b in zip(same, CLASSES.values(), strict=True))
    assert [name for name in asked if not name.startswith("__")] == []


def test_objects_of_a_nested_class_and_of_a_class_with_methods_are_made_in_the_worker(tmp_path: Path) -> None:
    item = msgspec.defstruct("Item", [("price", Amount)])
    order = msgspec.defstruct("Order", [("items", list[item]), ("by_name", dict[str, item | None], {})])  # type: ignore[valid-type]

    class Counted(msgspec.Struct):
        count: int
        twice: int = 0

        def __post_init__(self) -> None:
            self.twice = 2 * self.count

        def times(self, factor: int) -> int:
            return self.count * factor

    def converted(given: tuple[bytes, Any]) -> Any:
        read: Any = msgspec.json.decode(given[0], type=order)
        text = msgspec.json.encode(order(read.items, {"first": read.items[0], "none": None}))
        return text, read, Counted(given[1].count + 1), given[1].times(5)

    text, read, counted, product = _in_worker(tmp_path, converted, (b'{"items": [{"price": "1.25"}]}', Counted(3)))[0]
    assert text == b'{"items":[{"price":"1.25"}],"by_name":{"first":{"price":"1.25"},"none":null}}'
    assert read == order([item(Decimal("1.25"))])
    assert (counted, product, counted.twice) == (Counted(4), 15, 8)


def test_only_classes_that_no_worker_can_import_are_prepared() -> None:
    prepare_struct_classes()
    made = msgspec.defstruct("Made", [("a", int)])
    assert prepare_struct_classes() == 1
    assert prepare_struct_classes() == 0
    assert "__orig_bases__" in vars(made) and "__orig_bases__" not in vars(Importable)


class Importable(msgspec.Struct):
    number: int
