"""Classes of structs that are made at run time arrive in another process with their fields."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle

from stateflow import MapStateDescriptor, precision
from stateflow.api.aggregates.builtin import Count, Sum
from stateflow.api.schema import RowSchema
from stateflow.api.windows.column_windows import AccumulatorColumns
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


@pytest.mark.parametrize("case", CLASSES)
def test_a_class_made_at_run_time_arrives_with_its_declaration(tmp_path: Path, case: str) -> None:
    made = CLASSES[case]
    found, same = _in_worker(tmp_path, _facts, made)
    assert found == _facts(made)
    assert same is made


def test_objects_of_a_nested_class_are_made_and_encoded_in_the_worker(tmp_path: Path) -> None:
    item = msgspec.defstruct("Item", [("price", Amount)])
    order = msgspec.defstruct("Order", [("items", list[item]), ("by_name", dict[str, item | None], {})])  # type: ignore[valid-type]

    def converted(text: bytes) -> Any:
        read: Any = msgspec.json.decode(text, type=order)
        return msgspec.json.encode(order(read.items, {"first": read.items[0], "none": None})), read

    text, read = _in_worker(tmp_path, converted, b'{"items": [{"price": "1.25"}]}')[0]
    assert text == b'{"items":[{"price":"1.25"}],"by_name":{"first":{"price":"1.25"},"none":null}}'
    assert read == order([item(Decimal("1.25"))])


def test_methods_and_checks_of_a_class_in_a_function_are_called_in_the_worker(tmp_path: Path) -> None:
    class Counted(msgspec.Struct):
        count: int
        twice: int = 0

        def __post_init__(self) -> None:
            self.twice = 2 * self.count

        def times(self, factor: int) -> int:
            return self.count * factor

    def doubled(row: Any) -> tuple[Any, int]:
        return Counted(row.count + 1), row.times(5)

    assert _in_worker(tmp_path, doubled, Counted(3)) == ((Counted(4), 15), Counted(3))
    assert Counted(4).twice == 8


def test_a_class_of_the_package_arrives_in_a_descriptor(tmp_path: Path) -> None:
    number = RowSchema.of(CLASSES["defaults"]).column("a")
    columns = AccumulatorColumns({"rows": Count(number), "total": Sum(number)}, frozenset({"total"}))
    made: Any = columns.stored_class()
    assert [each.required for each in msgspec.structs.fields(made)] == [False, True]
    found, _ = _in_worker(tmp_path, lambda given: _facts(given.value_type), MapStateDescriptor("s", str, made))
    assert found == _facts(made)


def test_no_module_is_searched_for_a_name_to_send_a_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Airflow's deprecated modules warn when they are asked for a name.
    asked: list[str] = []
    module = types.ModuleType("lazy")
    module.__getattr__ = asked.append  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "lazy", module)
    for name in [each for each in sys.modules if each.split(".")[0] == "msgspec"]:
        # Modules are searched in the order of their import.
        sys.modules[name] = sys.modules.pop(name)
    _in_worker(tmp_path, len, list(CLASSES.values()))
    assert [name for name in asked if not name.startswith("__")] == []


def test_only_classes_that_no_worker_can_import_are_prepared() -> None:
    prepare_struct_classes()
    made = msgspec.defstruct("Made", [("a", int)])
    assert prepare_struct_classes() == 1
    assert prepare_struct_classes() == 0
    assert "__orig_bases__" in vars(made) and "__orig_bases__" not in vars(Importable)


class Importable(msgspec.Struct):
    number: int


_TYPES: Mapping[Any, Sequence[Any]] = {int: (0, 7), str | None: (None, "x"), list[float]: ([],), Amount: ()}


@given(
    kinds=st.lists(st.sampled_from(list(_TYPES)), min_size=1, max_size=5),
    optional=st.booleans(),
    kw_only=st.booleans(),
    frozen=st.booleans(),
    data=st.data(),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_bases_with_fields_make_equal_classes(
    kinds: list[Any], optional: bool, kw_only: bool, frozen: bool, data: st.DataObject
) -> None:
    fields: list[Any] = [(f"f{n}", kind) for n, kind in enumerate(kinds)]
    if optional:
        fields = [
            (name, kind, data.draw(st.sampled_from(_TYPES[kind]))) if _TYPES[kind] and kw_only else (name, kind)
            for name, kind in fields
        ]
    made = msgspec.defstruct("Row", fields, kw_only=kw_only, frozen=frozen)
    prepare_struct_classes()
    (bases,) = vars(made)["__orig_bases__"]
    (again,) = bases.__mro_entries__(())
    assert _facts(again) == _facts(made)
