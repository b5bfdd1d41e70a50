"""The first process of a container of the tests' node: mounts its volumes, then becomes the container's command.

Usage: ``unshare --mount … python container.py SPEC``, with the container as JSON. It has the files of the host, except
for those below its mount points.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def main(spec: Path) -> None:
    """Runs the container that a file describes: ``hostname``, ``mounts``, ``cwd``, ``argv``."""
    given = json.loads(spec.read_text())
    socket.sethostname(given["hostname"])
    _mount_all(given["mounts"])
    os.chdir(given["cwd"])
    os.execvp(given["argv"][0], given["argv"])


def _mount_all(mounts: Mapping[str, str]) -> None:
    # A volume may be mounted below another one.
    for path, content in sorted(mounts.items(), key=lambda mount: len(Path(mount[0]).parts)):
        point = Path(os.path.realpath(path))
        _make_point(point, is_folder=Path(content).is_dir())
        _mount("--bind", content, str(point))


def _make_point(point: Path, *, is_folder: bool) -> None:
    """Makes a mount point, without a change of the host's files."""
    if point.exists():
        return
    existing = next(folder for folder in point.parents if folder.exists())
    if existing == Path("/"):
        raise SystemExit(f"the container cannot have the mount {point}: choose a path below an existing folder")
    _replace_by_copy(existing)
    if is_folder:
        point.mkdir(parents=True)
    else:
        point.parent.mkdir(parents=True, exist_ok=True)
        point.touch()


def _replace_by_copy(folder: Path) -> None:
    """Mounts a folder in memory over `folder`, with the same content, in which names can be added."""
    copy = Path(tempfile.mkdtemp())
    _mount("-t", "tmpfs", "tmpfs", str(copy))
    for entry in folder.iterdir():
        new = copy / entry.name
        if entry.is_symlink():
            new.symlink_to(entry.readlink())
            continue
        new.mkdir() if entry.is_dir() else new.touch()
        _mount("--rbind", str(entry), str(new))
    _mount("--move", str(copy), str(folder))
    copy.rmdir()


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def command(spec: Path, interpreter: str) -> Sequence[str]:
    """Returns the command of a container, with its own mounts, processes and host name."""
    # A signal has an effect on the first process only if that handles it, as in pods.
    isolated = [*_isolated(), "--kill-child", "--mount-proc"]
    # The settings of the host's Python must not change this program; the container's command gets its own.
    return [*isolated, interpreter, "-S", str(Path(__file__)), str(spec)]


def can_isolate() -> bool:
    """Returns whether this user may run containers on this host."""
    with contextlib.suppress(OSError):
        return subprocess.run([*_isolated(), "true"], capture_output=True, check=False).returncode == 0
    return False


def _isolated() -> Sequence[str]:
    namespaces = ["unshare", "--mount", "--uts", "--pid", "--fork"]
    return namespaces if os.geteuid() == 0 else [*namespaces, "--map-root-user"]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
