"""Measures the structure of the packages against the project's limits; `make lint` prints it.

``python scripts/structure.py [--worst N]`` prints one line per measure with its limit, and ends with 1 when one is
exceeded. With ``--worst`` it lists the N worst places of each.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("stateflow", "plugins/stateflow_airflow")

PUBLIC_CONSTRUCTORS = {
    "stateflow/connectors/files/source.py": "FileSource: keyword arguments of the public API, most with a default",
    "stateflow/connectors/kafka/sink.py": "KafkaSink: the same",
    "stateflow/connectors/kafka/source.py": "KafkaSource: the same",
    "stateflow/connectors/spark.py": "SparkSource: the same",
    "stateflow/connectors/delta/sink.py": "DeltaSink: the same",
    "stateflow/connectors/delta/source.py": "DeltaSource: the same",
    "stateflow/connectors/partitioned/source.py": "PartitionedSource: the same",
    "stateflow/connectors/postgres/sink.py": "PostgresSink: the same",
}
"""Modules whose `__init__` may have more parameters than others, each with the reason."""
PUBLIC_FUNCTIONS = {
    "stateflow/query/columns/reader.py": {"read_state": "callers name what to select, as for pandas.read_parquet"},
    "stateflow/api/streams/all_windowed_stream.py": {"aggregate": "two functions, and the keywords of every operator"},
    "stateflow/api/streams/windowed_stream.py": {"aggregate": "two functions, and the keywords of every operator"},
    "stateflow/api/streams/keyed_ranking.py": {
        "deduplicate": "a clause of SQL each, all of them with a default",
        "top_n": "a clause of SQL each, most of them with a default",
    },
    "stateflow/replay/replay_batch.py": {"replay_batch": "the options of the command, most of them with a default"},
}
"""Functions that may have more parameters than others, by module, each with the reason."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


@dataclass(frozen=True)
class Module:
    """A parsed source file.

    Attributes:
        name: dotted, as other modules import it.
        path: relative to the repository.
    """

    name: str
    path: Path
    text: str
    tree: ast.Module


@dataclass(frozen=True)
class Measure:
    """A measured value and its limit.

    Attributes:
        value: the largest value of any place, or the number of places.
        places: where, the worst first.
    """

    title: str
    value: int
    limit: int
    places: Sequence[str]


def read_modules(repository: Path) -> list[Module]:
    """Parses every module of the packages."""
    found = []
    for package in PACKAGES:
        folder = repository / package
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder.parent).with_suffix("").parts
            name = ".".join(parts).removesuffix(".__init__")
            text = path.read_text()
            found.append(Module(name, path.relative_to(repository), text, ast.parse(text)))
    return found


def measures(modules: Sequence[Module]) -> list[Measure]:
    """Returns all measures in the order in which they are printed."""
    definitions = [each for module in modules for each in _definitions(module)]
    functions = [(place, node) for place, node in definitions if not isinstance(node, ast.ClassDef)]
    classes = [(place, node) for place, node in definitions if isinstance(node, ast.ClassDef)]
    cycles = import_cycles(import_graph(modules))
    return [
        Measure("import cycles", len(cycles), 0, [" -> ".join(cycle) for cycle in cycles]),
        _largest("modules in a folder", 14, _folder_sizes(modules)),
        _largest("lines of a module", 400, {str(m.path): len(m.text.splitlines()) for m in modules}),
        _largest("lines of a function", 50, {place: _length(node) for place, node in functions}),
        _largest("lines of a class", 250, {place: _length(node) for place, node in classes}),
        _largest("parameters of a function", 5, dict(_parameters(functions, _operator_constructors(modules)))),
        _number("public definitions without docstring", 0, _undocumented(modules)),
        _number("fmt: skip", 0, _matches(modules, r"#\s*fmt:\s*(skip|off)")),
        _number("type: ignore", 10, _matches(modules, r"#\s*type:\s*ignore")),
        _number("Any in annotations", 180, _any_annotations(modules)),
    ]


def import_graph(modules: Sequence[Module]) -> dict[str, set[str]]:
    """Returns the modules that each module imports, including imports for type checking."""
    names = {module.name for module in modules}
    return {module.name: set(_imported(module, names)) - {module.name} for module in modules}


def import_cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Returns the strongly connected components of more than one module (Tarjan, SIAM J. Comput. 1, 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            component = stack[at:]
            del stack[at:]
            if len(component) > 1:
                found.append(sorted(component))

    sys.setrecursionlimit(10_000)
    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def _imported(module: Module, names: set[str]) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in names else node.module for name in full if {name, node.module} & names)


def _definitions(module: Module) -> Iterator[tuple[str, Definition]]:
    for node in ast.walk(module.tree):
        if isinstance(node, Definition):
            yield f"{module.path}:{node.lineno} {node.name}", node


def _length(node: Definition) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _folder_sizes(modules: Iterable[Module]) -> dict[str, int]:
    sizes: defaultdict[str, int] = defaultdict(int)
    for module in modules:
        if module.path.name != "__init__.py":
            sizes[str(module.path.parent)] += 1
    return sizes


def _operator_constructors(modules: Iterable[Module]) -> set[ast.AST]:
    """Returns the constructors of the classes that derive from Airflow's BaseOperator, directly or indirectly."""
    classes = [node for module in modules for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)]
    operators = {"BaseOperator"}
    while found := {c.name for c in classes if c.name not in operators and operators & set(map(ast.unparse, c.bases))}:
        operators |= found
    methods = [method for c in classes if c.name in operators for method in c.body]
    return {method for method in methods if isinstance(method, Function) and method.name == "__init__"}


def _parameters(functions: Iterable[tuple[str, Function]], operators: set[ast.AST]) -> Iterator[tuple[str, int]]:
    """Counts parameters without ``self`` and ``cls``, and not those of Click commands: these are command-line options.

    Keyword-only parameters of an Airflow operator do not count either: DAG files pass each by name, and Airflow renders
    templates in the attribute of the same name (`template_fields`), so they cannot be grouped in an object.
    """
    for place, node in functions:
        if any("command" in ast.unparse(d) or "option" in ast.unparse(d) for d in node.decorator_list):
            continue
        arguments = node.args
        path = place.partition(":")[0]
        if (node.name == "__init__" and path in PUBLIC_CONSTRUCTORS) or node.name in PUBLIC_FUNCTIONS.get(path, {}):
            continue
        keywords = [] if node in operators else arguments.kwonlyargs
        names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *keywords)]
        yield place, len([name for name in names if name not in ("self", "cls")])


def _undocumented(modules: Iterable[Module]) -> Iterator[str]:
    for module in modules:
        if module.path.name != "__init__.py" and not ast.get_docstring(module.tree):
            yield str(module.path)
        yield from _undocumented_in(module, module.tree)


def _undocumented_in(module: Module, parent: ast.Module | ast.ClassDef) -> Iterator[str]:
    for node in parent.body:
        # The name of a test states what it checks; pytest calls it, and no user does.
        if not isinstance(node, Definition) or node.name.startswith(("_", "test_")):
            continue
        overrides = isinstance(parent, ast.ClassDef) and bool(parent.bases)
        if not ast.get_docstring(node) and not overrides:
            yield f"{module.path}:{node.lineno} {node.name}"
        if isinstance(node, ast.ClassDef):
            yield from _undocumented_in(module, node)


def _matches(modules: Iterable[Module], pattern: str) -> Iterator[str]:
    for module in modules:
        for number, line in enumerate(module.text.splitlines(), 1):
            if re.search(pattern, line):
                yield f"{module.path}:{number}"


def _any_annotations(modules: Iterable[Module]) -> Iterator[str]:
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Name) and node.id == "Any":
                yield f"{module.path}:{node.lineno}"


def _largest(title: str, limit: int, values: Mapping[str, int]) -> Measure:
    above = sorted((place for place, value in values.items() if value > limit), key=lambda p: -values[p])
    return Measure(title, max(values.values(), default=0), limit, [f"{values[place]} {place}" for place in above])


def _number(title: str, limit: int, places: Iterable[str]) -> Measure:
    found = list(places)
    return Measure(title, len(found), limit, found)


def main(arguments: Sequence[str]) -> int:
    """Prints the measures; returns 1 when a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worst", type=int, default=0, metavar="N")
    given = parser.parse_args(arguments)
    found = measures(read_modules(Path(__file__).parents[1]))
    for each in found:
        mark = "" if each.value <= each.limit else f"  above the limit in {len(each.places)} places"
        print(f"{each.title:<40}{each.value:>6} of {each.limit}{mark}")
        for place in each.places[: given.worst]:
            print(f"    {place}")
    return int(any(each.value > each.limit for each in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
