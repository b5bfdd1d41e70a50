"""State descriptors: what a strict type checker infers from them, and the arguments that they refuse."""

from __future__ import annotations

import re
import subprocess
import sys
import types
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from mypy import api
from pyspark import cloudpickle

from stateflow import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    Serializer,
    ValueStateDescriptor,
    precision,
)
from stateflow.errors import JobDefinitionError
from stateflow.types.columns.struct_classes import prepare_struct_classes
from tests.support.errors import raises

_JOB = """
from typing import Annotated
import msgspec
from stateflow import *

TTL = StateTtlConfig.new_builder(Time.days(1)).build()

class Sum(msgspec.Struct):
    total: int = 0

class Add(ReduceFunction[int]):
    def reduce(self, value1: int, value2: int) -> int:
        return value1 + value2

class Mean(AggregateFunction[int, list[int], float]):
    def create_accumulator(self) -> list[int]:
        return []
    def add(self, value: int, accumulator: list[int]) -> list[int]:
        return [*accumulator, value]
    def get_result(self, accumulator: list[int]) -> float:
        return sum(accumulator) / len(accumulator)
    def merge(self, acc_a: list[int], acc_b: list[int]) -> list[int]:
        return acc_a + acc_b

def longest(length: int, word: str) -> int:
    return max(length, len(word))

class States(KeyedProcessFunction[Sum, Sum]):
    def open(self, ctx: RuntimeContext) -> None:
"""
_STATES = {
    'state(ValueStateDescriptor("s", Sum))': "ValueState[Sum]",
    'state(ValueStateDescriptor("s", int, default=0, ttl=TTL, queryable="q"))': "ValueState[int]",
    'state(ValueStateDescriptor("s", list[str]))': "ValueState[list[str]]",
    'state(ValueStateDescriptor("s", tuple[int, int]))': "ValueState[tuple[int, int]]",
    'state(ValueStateDescriptor("s", int | None))': "ValueState[Any]",
    'state(ValueStateDescriptor("s", int | str, default=1))': "ValueState[Any]",
    'state(ValueStateDescriptor("s", Annotated[int, msgspec.Meta(ge=0)]))': "ValueState[Any]",
    'list_state(ListStateDescriptor("s", Sum, ttl=TTL))': "ListState[Sum]",
    'list_state(ListStateDescriptor("s", str | None))': "ListState[Any]",
    'map_state(MapStateDescriptor("s", str, Sum))': "MapState[str, Sum]",
    'map_state(MapStateDescriptor("s", str, Sum | None))': "MapState[str, Any]",
    'reducing_state(ReducingStateDescriptor("s", Add(), int))': "ReducingState[int]",
    'reducing_state(ReducingStateDescriptor("s", lambda a, b: a + b, int))': "ReducingState[int]",
    'reducing_state(ReducingStateDescriptor("s", lambda a, b: a or b, int | None))': "ReducingState[Any]",
    'aggregating_state(AggregatingStateDescriptor("s", Mean(), list[int]))': "AggregatingState[int, list[int], float]",
    'folding_state(FoldingStateDescriptor("s", 0, longest, int))': "AggregatingState[str, int, int]",
}
_REFUSED = ['ValueStateDescriptor("s", int, unknown=1)', "ValueStateDescriptor(1, int)", 'MapStateDescriptor("s", str)']


@pytest.mark.slow(reason="mypy reads the whole package: 20 seconds")
def test_a_state_has_the_type_that_its_descriptor_names(tmp_path: Path) -> None:
    """As mypy --strict reports it, line by line, without an annotation by the user."""
    lines = [f"self.s{at} = ctx.get_{state}; reveal_type(self.s{at})" for at, state in enumerate(_STATES)] + _REFUSED
    job = tmp_path / "typed_job.py"
    job.write_text(_JOB + "".join(f"        {line}\n" for line in lines))
    config = Path(__file__).parents[2] / "pyproject.toml"
    out, err, _ = api.run(["--config-file", str(config), "--no-error-summary", str(job)])
    assert not err
    reported: dict[int, list[str]] = {}
    for number, text in re.findall(r"typed_job\.py:(\d+): (.*)", out):
        reported.setdefault(int(number) - _JOB.count("\n") - 1, []).append(re.sub(r"\b(?:\w+\.)+(?=\w)", "", text))
    *types, first, second, third = [reported.pop(at, []) for at in range(len(lines))]
    assert types == [[f'note: Revealed type is "{wanted}"'] for wanted in _STATES.values()]
    assert all(any(text.startswith("error: ") for text in texts) for texts in (first, second, third))
    assert reported == {}, "the job's first lines have no errors"


ARGUMENTS: dict[Any, tuple[Any, ...]] = {
    ValueStateDescriptor: (int,),
    ListStateDescriptor: (int,),
    MapStateDescriptor: (str, int),
    ReducingStateDescriptor: (max, int),
}
WRONG_OPTIONS = [{"ttl": timedelta(days=7)}, {"ttl": 7}, {"serializer": Serializer}, {"serializer": "json"}]


@pytest.mark.parametrize("descriptor", ARGUMENTS)
@pytest.mark.parametrize("options", WRONG_OPTIONS)
def test_an_option_of_a_wrong_type_is_refused(descriptor: Any, options: dict[str, Any]) -> None:
    with raises(JobDefinitionError, name="seen", **{option: repr(given) for option, given in options.items()}):
        descriptor("seen", *ARGUMENTS[descriptor], **options)


def test_a_type_in_the_place_of_a_function_is_refused() -> None:
    for kind, arguments in ((ReducingStateDescriptor, (int, max)), (AggregatingStateDescriptor, (int, max))):
        made: Any = kind
        with raises(JobDefinitionError, name="sum"):
            made("sum", *arguments)


# -- classes that are made at run time arrive in another process with their fields ------------------------------------

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
