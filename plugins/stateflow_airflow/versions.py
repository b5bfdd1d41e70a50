"""Refuses versions of Airflow and of its Spark provider that this package was never run with."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping

from packaging.version import Version

SUPPORTED: Mapping[str, tuple[str, str]] = {
    "apache-airflow-core": ("3.3.2", "3.4"),
    "apache-airflow-providers-apache-spark": ("6.3.4", "6.4"),
}
"""Distribution: the first version supported, and the first one after it that is not."""


class UnsupportedVersion(ImportError):
    """An installed distribution is not one that stateflow's operators work with."""


def require_supported(installed: Mapping[str, str] | None = None) -> None:
    """Raises UnsupportedVersion, naming what is installed and what is wanted, unless `SUPPORTED` is met.

    Operators and the plugin call it when they are imported: Airflow shows the sentence as an import error.
    """
    for name, (first, beyond) in SUPPORTED.items():
        found = installed.get(name) if installed is not None else _installed(name)
        if found is None or not Version(first) <= Version(found) < Version(beyond):
            raise UnsupportedVersion(
                f"stateflow's Airflow operators need {name} >={first},<{beyond}; installed: {found or 'none'}"
                f"\n  hint: pip install '{name}>={first},<{beyond}'"
            )


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
