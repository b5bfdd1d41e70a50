"""The file systems on which paths are: those without the guarantees that job roots and tables need are refused.

A job root and a table need that exactly one of several hosts can create a file, that a listing after that has it, and
that a synced file survives the loss of a host. Clients of network file systems answer from caches, and object stores
that are mounted as folders replace whole objects: neither fails a probe on one host.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from stateflow.errors import EnvironmentUnsupported
from stateflow.storage.base import Storage
from stateflow.storage.paths import FORMAT

MOUNTS = Path("/proc/self/mountinfo")
"""The mounts of this process, as Linux lists them; tests have a list of their own."""

_REFUSED = {
    **dict.fromkeys(("nfs", "nfs4"), "an NFS client may show a stale directory, and repeat a creation that succeeded"),
    **dict.fromkeys(("cifs", "smb3", "smbfs"), "an SMB client may show a stale directory"),
    "fuse.sshfs": "SSHFS renames and creates files in several steps",
    **dict.fromkeys(
        (
            "fuse.s3fs",
            "fuse.goofys",
            "fuse.geesefs",
            "fuse.mountpoint-s3",
            "fuse.gcsfuse",
            "fuse.blobfuse",
            "fuse.blobfuse2",
            "fuse.rclone",
        ),
        "a mounted object store cannot create a file only if it is absent",
    ),
}
"""Types of file systems that are refused, and the reasons."""

_MOUNTED_STORES = ("mountpoint-s3", "gcsfuse", "s3fs", "blobfuse2", "goofys")
"""Sources of mounts of the plain type ``fuse`` that are object stores."""


@dataclass(frozen=True)
class Mount:
    """A mounted file system.

    Attributes:
        point: where it is mounted.
        kind: its type, such as ``ext4`` or ``nfs4``.
        source: what is mounted, such as ``server:/export``.
    """

    point: Path
    kind: str
    source: str

    @property
    def refused(self) -> str:
        """Why it is refused; empty if it is not."""
        if self.kind == "fuse" and self.source.startswith(_MOUNTED_STORES):
            return _REFUSED["fuse.s3fs"]
        return _REFUSED.get(self.kind, "")


def parse_mounts(text: str) -> list[Mount]:
    """Returns the mounts in the text of a mountinfo file, in its order; lines of another form are skipped."""
    found = []
    for line in text.splitlines():
        fields, separator, about = line.partition(" - ")
        words, last = fields.split(" "), about.split(" ")
        if separator and len(words) > 4 and len(last) > 1:
            found.append(Mount(Path(_unescape(words[4])), last[0], _unescape(last[1])))
    return found


def _unescape(text: str) -> str:
    """Decodes the bytes that Linux writes as three octal digits, such as spaces."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def mount_of(path: Path) -> Mount | None:
    """Returns the mount that a path is on, or would be created on; None where there is no list of mounts."""
    try:
        mounts = parse_mounts(MOUNTS.read_text(errors="surrogateescape"))
    except OSError:
        return None  # not Linux, or a process that may not see it: the race probe remains
    place = path.resolve()
    # Of several mounts at one point, the last one is visible.
    within = [mount for mount in mounts if place.is_relative_to(mount.point)]
    return max(reversed(within), key=lambda mount: len(mount.point.parts), default=None)


def check_mount(path: Path, what: str) -> None:
    """Raises EnvironmentUnsupported for a path on a file system without the guarantees that stateflow needs.

    Args:
        what: what the path is, such as "the job root".
    """
    mount = mount_of(path)
    if mount is not None and mount.refused:
        raise EnvironmentUnsupported(
            f"{what} is on a file system that stateflow does not support: {mount.refused}",
            hint="use a local or clustered file system, or a bucket by its own address: s3://, az:// or gs://",
            path=str(path),
            file_system=mount.kind,
            mounted=f"{mount.source} at {mount.point}",
        )


def check_root_mount(storage: Storage) -> None:
    """Raises EnvironmentUnsupported for a job root on such a file system; checks nothing for other storages."""
    file = storage.local_path(FORMAT)
    if file is not None:
        check_mount(file.parent, "the job root")
