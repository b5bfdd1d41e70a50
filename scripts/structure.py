"""Measures the structure of the packages against the project's limits; `make lint` prints it.

``python scripts/structure.py [--worst N]`` prints one line per measure with its limit, and ends with 1 when one is
exceeded. With ``--worst`` it lists the N worst places of each.

``python scripts/structure.py --record FILE [--repository PATH] [--seconds COMMAND N]`` writes the figures of a
checkout, with its walks and how long commands took there. ``--compare FILE FILE`` prints two such files as one table.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("stateflow", "plugins/stateflow_airflow")
LONG_MODULE = 700
"""Lines of a module above which its subject is worth a second look. This is a remark, not a limit."""

VERSION_MODULES = ("stateflow.config.spark_versions", "stateflow_airflow.versions")
"""The modules that know what differs between the versions of Spark, and of Airflow."""
VERSION_TESTS = {
    "stateflow.connectors.kafka.source: pyspark.__version__": "Spark's Kafka package has the release of Spark",
    "stateflow.operations.doctor: version_of('pyspark')": "the release is shown",
    "stateflow.runtime.spark.session.requirements: version_of(release).minor != python.minor": (
        "Java and Python must have the same version, whichever that is"
    ),
    "stateflow.runtime.spark.session.session: session.version": "the release is checked, by the module of versions",
    "stateflow.runtime.spark.session.session: hasattr(session, 'sparkContext')": "a session of Spark Connect has none",
    "stateflow_airflow.lineage: try: import airflow": "the provider of OpenLineage is a package that may be missing",
}
"""Places in other modules that look like a test of a version of Spark or Airflow, each with the reason why it stays."""
_VERSIONED = ("pyspark", "airflow")
_SESSIONS = {"session", "spark", "sparkContext"}

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


def measures(modules: Sequence[Module], repository: Path) -> list[Measure]:
    """Returns all measures in the order in which they are printed."""
    definitions = [each for module in modules for each in _definitions(module)]
    functions = [(place, node) for place, node in definitions if not isinstance(node, ast.ClassDef)]
    cycles = import_cycles(import_graph(modules))
    return [
        Measure("import cycles", len(cycles), 0, [" -> ".join(cycle) for cycle in cycles]),
        _largest("lines of a function", 50, {place: _length(node) for place, node in functions}),
        _largest("positional parameters of a function", 5, dict(_positional_parameters(functions))),
        _single_importers(modules, repository),
        _number("public definitions without docstring", 0, _undocumented(modules)),
        _number("fmt: skip", 0, _matches(modules, r"#\s*fmt:\s*(skip|off)")),
        _number("type: ignore", 10, _matches(modules, r"#\s*type:\s*ignore")),
        _number("Any in annotations", 180, _any_annotations(modules)),
        _number("versions told apart in other modules", 0, version_tests(modules)),
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


def single_importers(modules: Sequence[Module], repository: Path) -> dict[str, str]:
    """Returns the modules that only one module imports, and that one of their own folder.

    A list of modules does not count as their importer: a package's `__init__`, and the lists of commands and of
    endpoints. A program that another process runs, and a module of the reference, have other users as well.
    """
    importers: dict[str, set[str]] = {}
    for importer, imported in import_graph(modules).items():
        for name in imported:
            importers.setdefault(name, set()).add(importer)
    paths = {module.name: module.path for module in modules}
    only = {name: found.copy().pop() for name, found in importers.items() if len(found) == 1}
    lists = {name for name, path in paths.items() if _is_package(path)} | {"stateflow.cli.main", "stateflow.ui.app"}
    next_door = {name: one for name, one in only.items() if paths[name].parent == paths[one].parent}
    programs = {module.name for module in modules if '__name__ == "__main__"' in module.text}
    reference = "\n".join(page.read_text() for page in sorted((repository / "docs/reference/api").glob("*.md")))
    documented = {name for name in next_door if re.search(rf"^::: {name}\b", reference, re.MULTILINE)}
    return {n: one for n, one in next_door.items() if one not in lists and n not in lists | programs | documented}


def _is_package(path: Path) -> bool:
    return path.name == "__init__.py"


def _single_importers(modules: Sequence[Module], repository: Path) -> Measure:
    """Their share of all modules; such a module belongs into its importer."""
    found = single_importers(modules, repository)
    number = sum(not _is_package(module.path) for module in modules)
    places = [f"{name}, imported by {one}" for name, one in sorted(found.items())]
    return Measure("% of modules with one importer, next door", -(-100 * len(found) // number), 5, places)


def figures(repository: Path) -> dict[str, float]:
    """Returns the figures of a checkout by their titles."""
    modules = read_modules(repository)
    files = [len(module.text.splitlines()) for module in modules]
    functions = [_length(node) for m in modules for _, node in _definitions(m) if not isinstance(node, ast.ClassDef)]
    tests = [len(path.read_text().splitlines()) for path in (repository / "tests").rglob("*.py")]
    contracts = tomllib.loads((repository / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    found: dict[str, float] = {
        "files": len(files),
        "folders": len({module.path.parent for module in modules}),
        "lines of code": sum(files),
        "lines of a file, median": statistics.median(files),
        "lines of a file, p90": statistics.quantiles(files, n=10)[8],
        "lines of a function, median": statistics.median(functions),
        "lines of a function, p90": statistics.quantiles(functions, n=10)[8],
        "modules with one importer, in its folder": len(single_importers(modules, repository)),
        "import contracts": len(contracts),
        "lines of pyproject.toml": len((repository / "pyproject.toml").read_text().splitlines()),
        "test files": len(tests),
        "lines of tests": sum(tests),
    }
    program = [sys.executable, str(Path(__file__).with_name("walks.py"))]
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    walks = json.loads(subprocess.run(program, env=environment, stdout=subprocess.PIPE, check=True).stdout)
    for title, walk in walks.items():
        for unit in ("files", "folders", "calls"):
            found[f"{title}: {unit}"] = walk[unit]
    return found


def table(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """Returns two recorded sets of figures as a table."""
    lines = ["| | before | after |", "|---|---:|---:|"]
    return "\n".join(lines + [f"| {title} | {before.get(title, '')} | {after[title]} |" for title in after])


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


def _positional_parameters(functions: Iterable[tuple[str, Function]]) -> Iterator[tuple[str, int]]:
    """Counts parameters without ``self`` and ``cls``. Those of Click commands are options of the command line."""
    for place, node in functions:
        if any("command" in ast.unparse(d) or "option" in ast.unparse(d) for d in node.decorator_list):
            continue
        names = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
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


def version_tests(modules: Iterable[Module], known: Mapping[str, str] = VERSION_TESTS) -> Iterator[str]:
    """Yields the places outside of `VERSION_MODULES` that test which version of Spark or Airflow there is.

    Args:
        modules: the modules to read.
        known: places that stay, by module and text; those that are not there any more are yielded, too.
    """
    unseen = dict(known)
    for module in modules:
        if module.name in VERSION_MODULES:
            continue
        imported = _imported_names(module)
        for node in ast.walk(module.tree):
            if text := _version_test(node, imported):
                unseen.pop(f"{module.name}: {text}", None)
                if f"{module.name}: {text}" not in known:
                    yield f"{module.path}:{getattr(node, 'lineno', 0)} {text}"
    yield from (f"{place} is in VERSION_TESTS, and not in the module" for place in unseen)


def _imported_names(module: Module) -> set[str]:
    """Returns the names that a module has for what it imports from Spark and Airflow."""
    found = set[str]()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                if _is_versioned(node.module if isinstance(node, ast.ImportFrom) else alias.name):
                    found.add(alias.asname or alias.name.partition(".")[0])
    return found


def _is_versioned(name: str | None) -> bool:
    return (name or "").partition(".")[0] in _VERSIONED


def _version_test(node: ast.AST, imported: set[str]) -> str:
    """Returns what tests a version, as text; empty for any other node."""
    match node:
        case ast.Try(handlers=handlers):
            caught = {name.id for h in handlers if h.type for name in ast.walk(h.type) if isinstance(name, ast.Name)}
            packages = [name for name in _VERSIONED if any(_imports(each, name) for each in node.body)]
            is_test = bool(packages) and bool(caught & {"ImportError", "ModuleNotFoundError", "AttributeError"})
            return f"try: import {packages[0]}" if is_test else ""
        case ast.ImportFrom(module=module, names=names) if _is_versioned(module):
            is_test = (module or "").endswith(".version") or any(each.name == "__version__" for each in names)
        case ast.Attribute(attr="__version__", value=ast.Name(id=name)):
            is_test = name in imported
        case ast.Attribute(attr="version", value=ast.Name(id=name) | ast.Attribute(attr=name)):
            is_test = name in _SESSIONS
        case ast.Call(func=ast.Name(id="hasattr"), args=[ast.Name(id=name), *_]):
            is_test = name in imported | _SESSIONS
        case ast.Call(args=[ast.Constant(value=str(package)), *_]):
            is_test = bool(re.match(r"pyspark|apache-airflow", package)) and "version" in ast.unparse(node.func)
        case ast.Compare():
            is_test = any(isinstance(each, ast.Attribute) and each.attr == "minor" for each in ast.walk(node))
        case _:
            is_test = False
    return ast.unparse(node) if is_test else ""


def _imports(statement: ast.stmt, package: str) -> bool:
    names = [alias.name for alias in statement.names] if isinstance(statement, ast.Import) else []
    names += [statement.module or ""] if isinstance(statement, ast.ImportFrom) else []
    return any(name.partition(".")[0] == package for name in names)


def _largest(title: str, limit: int, values: Mapping[str, int]) -> Measure:
    above = sorted((place for place, value in values.items() if value > limit), key=lambda p: -values[p])
    return Measure(title, max(values.values(), default=0), limit, [f"{values[place]} {place}" for place in above])


def _number(title: str, limit: int, places: Iterable[str]) -> Measure:
    found = list(places)
    return Measure(title, len(found), limit, found)


def main(arguments: Sequence[str]) -> int:
    """Prints the measures and long modules; returns 1 when a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worst", type=int, default=0, metavar="N")
    parser.add_argument("--repository", type=Path, default=Path(__file__).parents[1], metavar="PATH")
    parser.add_argument("--record", type=Path, metavar="FILE")
    parser.add_argument("--seconds", nargs=2, action="append", default=[], metavar=("COMMAND", "N"))
    parser.add_argument("--compare", type=Path, nargs=2, metavar="FILE")
    given = parser.parse_args(arguments)
    if given.compare:
        print(table(*[json.loads(file.read_text()) for file in given.compare]))
        return 0
    if given.record:
        found = figures(given.repository) | {f"{command}, seconds": float(n) for command, n in given.seconds}
        given.record.write_text(json.dumps(found, indent=2) + "\n")
        return 0
    return _check(given.repository, given.worst)


def _check(repository: Path, worst: int) -> int:
    modules = read_modules(repository)
    found = measures(modules, repository)
    for each in found:
        mark = "" if each.value <= each.limit else f"  above the limit in {len(each.places)} places"
        print(f"{each.title:<42}{each.value:>6} of {each.limit}{mark}")
        for place in each.places[:worst]:
            print(f"    {place}")
    for module in modules:
        if (lines := len(module.text.splitlines())) > LONG_MODULE:
            print(f"{module.path} has {lines} lines: is it one subject?")
    return int(any(each.value > each.limit for each in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
