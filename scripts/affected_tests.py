"""Prints the test files that a change of one package needs, for ``make test PACKAGE=…``.

``python scripts/affected_tests.py connectors/kafka`` prints the tests in the folder of that name, and those that import
a module of the package: directly, by a public name of `stateflow`, or through a file of the tests that it imports.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import stateflow

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"


def affected(package: str) -> list[Path]:
    """Returns the test files of a package, relative to the repository.

    Args:
        package: a folder or module below `stateflow/`, or ``plugins``.

    Raises:
        LookupError: the package does not exist.
    """
    name = (
        "stateflow_airflow" if package.strip("/") == "plugins" else f"stateflow.{package.strip('/').replace('/', '.')}"
    )
    place = ROOT / ("plugins" if package.strip("/") == "plugins" else f"stateflow/{package.strip('/')}")
    if not place.is_dir() and not place.with_suffix(".py").is_file():
        raise LookupError(f"there is neither a folder nor a module {place.relative_to(ROOT)}")
    own = TESTS / ("airflow" if package.strip("/") == "plugins" else package.strip("/"))
    found = [
        path
        for path in sorted(TESTS.rglob("test_*.py"))
        if path.is_relative_to(own) or any(used == name or used.startswith(f"{name}.") for used in _reached(path))
    ]
    return [path.relative_to(ROOT) for path in found]


def _reached(path: Path) -> Iterator[str]:
    """Yields the modules of the product that a test file imports, itself or by the files of tests that it imports."""
    for name in _imported(path):
        yield name
        helper = ROOT / f"{name.replace('.', '/')}.py"
        if name.startswith("tests.") and helper.is_file():
            yield from _imported(helper)


@cache
def _imported(path: Path) -> tuple[str, ...]:
    return tuple(_names(ast.parse(path.read_text())))


def _names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "stateflow":
            yield from (_home(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _home(name: str) -> str:
    """Returns the module in which a public name of the package is defined."""
    return str(getattr(getattr(stateflow, name, None), "__module__", "stateflow"))


def main(arguments: Sequence[str]) -> None:
    """Prints the files, one per line."""
    for package in arguments:
        for path in affected(package):
            print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
