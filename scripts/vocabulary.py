"""Reports terms that the documentation style avoids: pictures and private English instead of standard terms.

``python scripts/vocabulary.py [--list] [FOLDER...]`` reads docstrings, comments, string literals and names of tests in
Python files, Markdown files outside of code, and comments of the Makefile and of configuration files. It prints the
number of findings per folder and ends with 1 if there are any; with ``--list`` it also prints each finding with the
terms to use instead. ``[tool.vocabulary]`` in ``pyproject.toml`` lists the exceptions with their reasons.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDERS = (
    *("stateflow", "plugins", "dags", "scripts", "benchmarks", "docker", "tests", "docs"),
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile"),
    *("pyproject.toml", "requirements.in", "requirements-dev.in"),
)

TERMS: Mapping[str, str] = {
    r"behind": "after",
    r"besides?": "while, concurrently; in addition to",
    r"(?:un)?told|tell|tells|telling": "report, return, log, raise; describe",
    r"somebody|anybody|nobody|everybody|someone|whoever": "the user, operator, caller, process",
    r"moments?": "time, timestamp",
    r"mend(?:s|ed|ing)?": "fix",
    r"anew": "again",
    r"not \w+ any\s*more|any\s*more": "no longer",
    r"ends? (?:badly|well)|in good order": "fails; succeeds",
    r"(?:stands?|stood|standing) (?:at|on|beside|below|above|in|for|still)": "is at, is in",
    r"go(?:es)? on|went on|going on": "continue",
    r"all the same": "still, nevertheless",
    r"now and then": "periodically",
    r"worked off|works? off|working off": "processed",
    r"ways? out": "fix, solution",
    r"ways? back": "restore, recovery",
    r"lets? (?:\w+ )?go|let go": "release, delete",
    r"(?:hand|hands|handed|handing) (?:over|back)|(?:give|gives|gave|given) back": "pass, return",
    r"wish(?:es|ed)?": "request",
    r"what (?:becomes|became|comes|came) of": "the outcome of",
    r"out of turn": "unscheduled",
    r"hears?|heard": "receives",
    r"ours|of us|to us": "stateflow's",
    r"has to be there|is there|are there|was there|were there|there already|already there": "exists, is stored",
}
"""Pattern of an avoided term, matched as whole words without regard to case, and the terms to use instead."""

TEST_NAME_TERMS: Mapping[str, str] = {
    r"it": "the name of the thing, so that a search for the thing finds the test",
    r"(?:go(?:es|ing)?|went|gone) back": "is restored, is rewound, returns",
}
"""Terms to avoid only in the names of tests, which are read one by one."""


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
_TEST_NAME_PATTERNS = _PATTERNS + _patterns(TEST_NAME_TERMS)
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


@dataclass(frozen=True)
class Exemption:
    """An accepted use of an avoided term.

    Attributes:
        path: beginning of the paths that it covers.
        term: the term as it is written, in lower case; empty for all terms.
    """

    path: str
    term: str

    def covers(self, finding: Finding) -> bool:
        """Whether the finding is accepted."""
        return finding.path.startswith(self.path) and self.term in ("", finding.found.lower())


def find_terms(path: str, text: str) -> list[Finding]:
    """Returns the avoided terms in the prose and the test names of a file, by line."""
    found = []
    for start, block, patterns in _prose(path, text):
        readable = _blank(block, _CODE_SPAN)
        matches = [(match.start(), match[0], use) for pattern, use in patterns for match in pattern.finditer(readable)]
        for at, term, use in sorted(matches):
            found.append(Finding(path, start + readable.count("\n", 0, at), " ".join(term.split()), use))
    return sorted(found, key=lambda finding: finding.line)


def _prose(path: str, text: str) -> Iterator[tuple[int, str, list[tuple[re.Pattern[str], str]]]]:
    """Yields the prose of a file, the number of its first line, and the patterns to avoid in it."""
    if not path.endswith(".py"):
        yield 1, _blank(text, _MARKDOWN_CODE if path.endswith(".md") else _CODE_BEFORE_COMMENTS), _PATTERNS
        return
    yield from ((line, block, _PATTERNS) for line, block in _python_prose(text))
    yield from ((line, name, _TEST_NAME_PATTERNS) for line, name in _test_names(text))


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


def read_exemptions(pyproject: Path) -> list[Exemption]:
    """Returns the accepted uses; each has a reason.

    Raises:
        ValueError: an exception has no reason.
    """
    entries = tomllib.loads(pyproject.read_text()).get("tool", {}).get("vocabulary", {}).get("allow", [])
    for entry in entries:
        if not entry.get("reason"):
            raise ValueError(f"an exception in [tool.vocabulary] has no reason: {entry}")
    return [Exemption(entry["path"], entry.get("term", "")) for entry in entries]


def scan(repository: Path, folders: Iterable[str]) -> list[Finding]:
    """Returns the findings in the tracked files of folders, without the accepted ones."""
    exemptions = read_exemptions(repository / "pyproject.toml")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *folders], cwd=repository, capture_output=True, text=True, check=True
    ).stdout
    paths = [
        path
        for path in listed.split("\0")
        if path.endswith((".py", ".md", ".toml", ".in", ".sh", ".yaml", ".yml", "Makefile"))
        and (repository / path).is_file()
    ]
    found = [finding for path in paths for finding in find_terms(path, (repository / path).read_text())]
    return [finding for finding in found if not any(each.covers(finding) for each in exemptions)]


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
