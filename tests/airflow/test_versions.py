"""Versions that were never tried are refused with a sentence that names them."""

from __future__ import annotations

import pytest

from stateflow_airflow.versions import SUPPORTED, UnsupportedVersion, require_supported

GOOD = {name: first for name, (first, _) in SUPPORTED.items()}


def test_installed_versions_are_supported() -> None:
    require_supported()


@pytest.mark.parametrize("name", SUPPORTED)
@pytest.mark.parametrize("version", ["2.11.0", "3.3.1", "3.4.0", "4.0.0", "6.3.3", "6.4.0", None])
def test_others_are_refused(name: str, version: str | None) -> None:
    installed = {key: value for key, value in {**GOOD, name: version}.items() if value}
    with pytest.raises(UnsupportedVersion, match=rf"need {name} .*installed: {version or 'none'}"):
        require_supported(installed)
