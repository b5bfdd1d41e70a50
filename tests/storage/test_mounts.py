"""File systems without the guarantees of job roots and tables are refused before a run starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from stateflow import DeltaSink, FileSink
from stateflow.api.schema import RowSchema
from stateflow.api.sink import Sink, SinkContext
from stateflow.errors import EnvironmentUnsupported
from stateflow.storage import mounts
from stateflow.storage.mounts import Mount, mount_of, parse_mounts
from tests.support.cli_fixture import BUILD, Case, CliFixture, check
from tests.support.errors import raises


class Row(msgspec.Struct):
    id: int


CONTEXT = SinkContext("job", "out", RowSchema.of(Row))


def _mounted(folder: Path, kind: str, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets Linux report one file system on `folder`, in addition to the machine's."""
    name = str(folder).replace(" ", "\\040")
    lines = [
        "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw",
        f"40 22 0:50 / {name} rw,relatime shared:9 - ext4 /dev/other rw",
        f"41 22 0:51 / {name} rw,relatime shared:9 - {kind} {source} rw,vers=4.2",
        "42 22 0:52 / /elsewhere rw - tmpfs tmpfs rw",
        "a line of another form",
    ]
    table = folder.parent / "mountinfo"
    table.write_text("\n".join(lines))
    monkeypatch.setattr(mounts, "MOUNTS", table)


@pytest.mark.parametrize(
    ("kind", "source", "refused"),
    [
        ("nfs4", "server:/export", True),
        ("nfs", "server:/export", True),
        ("cifs", "//server/share", True),
        ("fuse.s3fs", "s3fs", True),
        ("fuse", "mountpoint-s3", True),
        ("fuse", "/dev/fuse", False),
        ("fuse.glusterfs", "server:/volume", False),
        ("lustre", "server:/lustre", False),
        ("ceph", "server:6789:/", False),
        ("xfs", "/dev/sdb", False),
    ],
)
def test_a_job_root_and_tables_are_on_a_file_system_with_the_guarantees(
    tmp_path: Path, kind: str, source: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    _mounted(folder, kind, source, monkeypatch)
    assert mount_of(folder / "job" / "root") == Mount(folder, kind, source)
    assert mount_of(tmp_path / "a bc") == Mount(Path("/"), "ext4", "/dev/root")
    facts = {"path": str(folder / "out"), "file_system": kind, "mounted": f"{source} at {folder}"}
    for sink in (DeltaSink(folder / "out"), FileSink(folder / "out")):
        if refused:
            with raises(EnvironmentUnsupported, **facts) as caught:
                sink.check(CONTEXT)
            assert "s3://" in caught.value.hint
        else:
            assert sink.check(CONTEXT) is None
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("new_sink", [DeltaSink, FileSink])
def test_an_existing_table_on_nfs_is_refused(
    tmp_path: Path, new_sink: Callable[[Path], Sink], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been made elsewhere, or before the file system was mounted over the network."""
    folder = tmp_path / "mnt"
    new_sink(folder / "out").prepare(CONTEXT)
    _mounted(folder, "nfs4", "server:/export", monkeypatch)
    with raises(EnvironmentUnsupported, file_system="nfs4"):
        new_sink(folder / "out").check(CONTEXT)
    with raises(EnvironmentUnsupported, file_system="nfs4"):
        new_sink(folder / "out").prepare(CONTEXT)


def test_a_job_root_on_nfs_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mnt"
    folder.mkdir()
    _mounted(folder, "nfs4", "server:/export", monkeypatch)
    job = tmp_path / "job"
    job.mkdir()
    cli = CliFixture(job)

    def make(b: CliFixture) -> None:
        b.root = str(folder / "root")
        b.write(BUILD)

    check(cli, Case(make, EnvironmentUnsupported, {"file_system": "nfs4"}, hint="s3://"))
    assert list(folder.iterdir()) == []


def test_a_machine_without_a_list_of_mounts_is_left_to_the_race_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts, "MOUNTS", tmp_path / "missing")
    assert mount_of(tmp_path) is None


def test_the_mounts_of_this_machine_can_be_read(tmp_path: Path) -> None:
    found = mount_of(tmp_path)
    assert found is not None and found.kind and not found.refused
    assert found in parse_mounts(mounts.MOUNTS.read_text())
