"""Versions that were never tried are refused and named."""

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
    with pytest.raises(UnsupportedVersion) as caught:
        require_supported(installed)
    assert (caught.value.distribution, caught.value.installed) == (name, version)
    # Airflow shows the text only.
    assert all(part in str(caught.value) for part in (name, *SUPPORTED[name], version or ""))
