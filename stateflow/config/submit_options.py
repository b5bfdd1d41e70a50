"""Options of spark-submit whose settings are in a file: a program's arguments are visible to all users of a host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

CONF = "--conf"
PROPERTIES_FILE = "--properties-file"
_SHORT_CONF = "-c"
_ESCAPED = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}


def hide_conf(options: Sequence[str], file: Path) -> tuple[list[str], str | None]:
    """Moves Spark's settings from the options of spark-submit to a file.

    Args:
        options: the options, without the executable and the program.
        file: the path of the file, which the caller writes.

    Returns:
        The options, and the file's content; None without settings.

    Raises:
        OSError: the options have a file of settings that cannot be read.
        UnicodeDecodeError: that file is not text.
    """
    pairs = list(_pairs(options))
    conf = [value or "" for name, value in pairs if name == CONF]
    given = [value or "" for name, value in pairs if name == PROPERTIES_FILE]
    if not conf:
        return list(options), None
    kept = [
        word
        for name, value in pairs
        if name not in (CONF, PROPERTIES_FILE)
        for word in (name, value)
        if word is not None
    ]
    # Without a file of the user, spark-submit reads spark-defaults.conf, with one it does not.
    loading = [] if given else ["--load-spark-defaults"]
    # Of two lines with one name, the last one counts.
    content = "".join(f"{Path(path).read_text()}\n" for path in given[-1:]) + "".join(map(_property, conf))
    return [*kept, PROPERTIES_FILE, str(file), *loading], content


def option(options: Sequence[str], name: str) -> str | None:
    """Returns the value of an option, the last one if it is given several times; None if it is not given."""
    return dict(_pairs(options)).get(name)


def _pairs(options: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yields each option with its value; None for an option without one."""
    words = iter(options)
    name = next(words, None)
    while name is not None:
        long, equals, value = name.partition("=")
        if equals and long in (CONF, PROPERTIES_FILE):
            yield long, value
            name = next(words, None)
            continue
        following = next(words, None)
        if following is None or following.startswith("--") or following == _SHORT_CONF:
            yield name, None
            name = following
        else:
            yield CONF if name == _SHORT_CONF else name, following
            name = next(words, None)


def _property(conf: str) -> str:
    """Returns ``NAME=VALUE`` as a line of a Java properties file."""
    name, _, value = conf.partition("=")
    name = "".join(f"\\{c}" if c in " :=#!" else _ESCAPED.get(c, c) for c in name)
    value = "".join(_ESCAPED.get(c, c) for c in value)
    return f"{name}=\\{value}\n" if value.startswith(" ") else f"{name}={value}\n"
