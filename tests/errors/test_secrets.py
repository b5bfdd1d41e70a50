"""The search for a secret in what tests wrote finds one."""

from __future__ import annotations

from pathlib import Path

from tests.servers.running import files_with


def test_a_secret_is_found_in_text_and_in_bytes(tmp_path: Path) -> None:
    secret = "canary-" + "that-was-written"
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "manifest.json").write_text(f'{{"key": "{secret}"}}')
    (tmp_path / "a" / "b" / "000001.sst").write_bytes(b"\0\1" + secret.encode() + b"\0")
    (tmp_path / "a" / "log").write_text("nothing")
    assert sorted(Path(found).name for found in files_with(secret, tmp_path)) == ["000001.sst", "manifest.json"]
    assert files_with(secret, tmp_path / "nowhere") == []
