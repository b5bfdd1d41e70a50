"""Options of spark-submit, and how they show no secret: a program's arguments are visible to all users of a host."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

CONF = "--conf"
PROPERTIES_FILE = "--properties-file"
_SHORT_CONF = "-c"
CLUSTER_MODE = "cluster"
"""The deploy mode in which the driver runs in the cluster."""
YARN = "yarn"
"""The master of YARN."""
KUBERNETES = "k8s:"
"""What a master of Kubernetes begins with."""
HADOOP = "spark.hadoop."
"""Beginning of the settings of Spark that are Hadoop's."""
_COPIED = {
    "AWS_ACCESS_KEY_ID": ("fs.s3.awsAccessKeyId", "fs.s3n.awsAccessKeyId", "fs.s3a.access.key"),
    "AWS_SECRET_ACCESS_KEY": ("fs.s3.awsSecretAccessKey", "fs.s3n.awsSecretAccessKey", "fs.s3a.secret.key"),
    "AWS_SESSION_TOKEN": ("fs.s3a.session.token",),
}
"""Variables that Spark's Java process copies into its Hadoop configuration, with their names there."""
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


def runs_drivers(master: str) -> bool:
    """Returns whether a master runs Python drivers in its cluster; a standalone master does not."""
    return master == YARN or master.startswith(KUBERNETES)


def copied_credentials(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns what Spark's Java process copies from its environment into its Hadoop configuration, by name there.

    It copies nothing unless both the id of a key and the key are set.
    """
    if not {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} <= environment.keys():
        return {}
    known = ((variable, names) for variable, names in _COPIED.items() if variable in environment)
    return {name: environment[variable] for variable, names in known for name in names}


def hide_credentials(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings with which Spark copies no credentials from its environment.

    On YARN, it writes its Hadoop configuration into an archive that all containers get, and that hosts keep for later
    applications. An empty setting has precedence over the variable, and Hadoop's S3 client then reads the variable.
    """
    return dict.fromkeys((f"{HADOOP}{name}" for name in copied_credentials(environment)), "")


def option(options: Sequence[str], name: str) -> str | None:
    """Returns the value of an option, the last one if it is given several times; None if it is not given."""
    return dict(_pairs(options)).get(name)


def read_conf(options: Sequence[str], defaults: Path | None) -> dict[str, str]:
    """Returns the settings with which spark-submit starts, by name, as far as options and files give them.

    Args:
        options: the options, without the executable and the program.
        defaults: the file of Spark's defaults; None without one.

    Raises:
        OSError: a file of settings cannot be read.
        UnicodeDecodeError: that file is not text.
    """
    pairs = [(name, value or "") for name, value in _pairs(options)]
    files = [Path(value) for name, value in pairs if name == PROPERTIES_FILE][-1:]
    found: dict[str, str] = {}
    # With a file of the user, spark-submit does not read its defaults.
    for path in files or ([defaults] if defaults is not None and defaults.is_file() else []):
        found |= _properties(path.read_text())
    given = [value.partition("=") for name, value in pairs if name == CONF]
    return found | {name.strip(): value.strip() for name, _, value in given}


def default_conf_file(environment: Mapping[str, str], home: Path | None) -> Path | None:
    """Returns the file of Spark's defaults, which may not exist; None if its folder is unknown.

    Args:
        environment: the environment of spark-submit.
        home: Spark's folder, if the environment names none.
    """
    folder = environment.get("SPARK_CONF_DIR")
    spark = environment.get("SPARK_HOME") or home
    if not folder and spark is None:
        return None
    return (Path(folder) if folder else Path(str(spark)) / "conf") / "spark-defaults.conf"


def _properties(text: str) -> dict[str, str]:
    """Returns the settings in a text of Java properties whose names have no escapes, as Spark's have none."""
    lines = (line.strip() for line in text.splitlines())
    parts = (re.split(r"\s*[=:\s]\s*", line, maxsplit=1) for line in lines if line and line[0] not in "#!")
    return {part[0]: part[1] if len(part) > 1 else "" for part in parts}


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
