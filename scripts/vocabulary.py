"""Reports words for which docs/glossary.md has a term of its own.

``python scripts/vocabulary.py [--list] [FOLDER...]`` reads docstrings, comments, string literals and names of tests in
Python files, Markdown files outside of code, and comments of the Makefile and of configuration files. It prints the
number of findings per folder and ends with 1 if there are any; with ``--list`` it also prints each finding with the
terms to use instead.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDERS = (
    *("stateflow", "plugins", "dags", "scripts", "benchmarks", "docker", "tests", "docs"),
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile"),
    *("pyproject.toml", "requirements.in", "requirements-dev.in"),
)

LISTS = ("scripts/vocabulary.py", "tests/docs/test_vocabulary.py")
"""Files that contain the words on purpose."""

TERMS: Mapping[str, str] = {
    r"unpublished output": "pending output",
    r"(?:take|takes|took|taken|taking)(?: \w+)? back": "retract",
    r"(?:operator|parallel) instances?|sub-tasks?": "subtask",
    r"job (?:directory|folder)|job directories|job folders": "job root",
    r"recovery points?|check points?|save points?": "checkpoint, savepoint",
    r"checkpoint (?:number|counter)s?": "checkpoint id",
    r"dead[- ]letter queues?": "dead letters",
    r"(?:late|out-of-order) events?": "late row",
    r"water marks?": "watermark",
    r"micro batch(?:es)?": "batch, micro-batch",
}
"""Pattern of a word, matched as a whole without regard to case, and the term of the glossary."""


def _flexible(term: str) -> str:
    """Returns a pattern that also matches a term with line breaks between its words."""
    return term.replace(" ", r"\s+")


def _patterns(terms: Mapping[str, str]) -> list[tuple[re.Pattern[str], str]]:
    """Returns the compiled patterns of terms, each with the terms to use instead."""
    return [
        (re.compile(rf"(?<![\w`/.-])(?:{_flexible(term)})(?![\w`/-])", re.IGNORECASE), use)
        for term, use in terms.items()
    ]


_PATTERNS = _patterns(TERMS)
_CODE_BEFORE_COMMENTS = re.compile(r"^[^#\n]*#*", re.MULTILINE)
_MARKDOWN_CODE = re.compile(r"^(```|~~~).*?^\1[^\n]*$", re.MULTILINE | re.DOTALL)
_CODE_SPAN = re.compile(r"``[^`]+``|`[^`\n]+`")


@dataclass(frozen=True)
class Finding:
    """An avoided term in a file.

    Attributes:
        path: relative to the repository.
        line: number of the line, from 1.
        found: the term as it is written.
        use: the terms to use instead.
    """

    path: str
    line: int
    found: str
    use: str


def find_terms(path: str, text: str) -> list[Finding]:
    """Returns the avoided terms in the prose and the test names of a file, by line."""
    found = []
    for start, block in _prose(path, text):
        readable = _blank(block, _CODE_SPAN)
        matches = [(match.start(), match[0], use) for pattern, use in _PATTERNS for match in pattern.finditer(readable)]
        for at, term, use in sorted(matches):
            found.append(Finding(path, start + readable.count("\n", 0, at), " ".join(term.split()), use))
    return sorted(found, key=lambda finding: finding.line)


def _prose(path: str, text: str) -> Iterator[tuple[int, str]]:
    """Yields the prose of a file, and the number of its first line."""
    if not path.endswith(".py"):
        yield 1, _blank(text, _MARKDOWN_CODE if path.endswith(".md") else _CODE_BEFORE_COMMENTS)
        return
    yield from _python_prose(text)
    yield from _test_names(text)


def _blank(text: str, pattern: re.Pattern[str]) -> str:
    """Replaces matches by as many spaces, and keeps line breaks."""
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def _python_prose(text: str) -> Iterator[tuple[int, str]]:
    """Yields comments and strings with the number of their first line; adjacent comment lines are one text."""
    comments: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        if comments and token.start[0] != last + 1:
            yield first, "\n".join(comments)
            comments = []
        first, last = first if comments else token.start[0], token.start[0]
        comments.append(token.string.lstrip("# "))
    if comments:
        yield first, "\n".join(comments)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


def _test_names(text: str) -> Iterator[tuple[int, str]]:
    """Yields the names of tests as words, with their lines."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.lineno, node.name.replace("_", " ")


def scan(repository: Path, folders: Iterable[str]) -> list[Finding]:
    """Returns the findings in the tracked files of folders."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *folders], cwd=repository, capture_output=True, text=True, check=True
    ).stdout
    kinds = (".py", ".md", ".toml", ".in", ".sh", ".yaml", ".yml", "Makefile")
    paths = [path for path in listed.split("\0") if path.endswith(kinds) and path not in LISTS]
    return [
        f for path in paths if (repository / path).is_file() for f in find_terms(path, (repository / path).read_text())
    ]


def _folder(path: str) -> str:
    """Returns the first two parts of a path, or a file's own name at the top."""
    parts = Path(path).parent.parts
    return "/".join(parts[:2]) if parts else path


def main(arguments: Sequence[str]) -> int:
    """Prints the findings per folder; returns 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print each finding")
    parser.add_argument("folders", nargs="*", default=FOLDERS, help="folders or files, relative to the repository")
    given = parser.parse_args(arguments)
    found = scan(Path(__file__).resolve().parents[1], given.folders)
    if given.list:
        for finding in found:
            print(f"{finding.path}:{finding.line}: {finding.found!r}: use {finding.use}")
    for folder, count in sorted(Counter(_folder(finding.path) for finding in found).items()):
        print(f"{count:>6}  {folder}")
    print(f"{len(found):>6}  in total")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
