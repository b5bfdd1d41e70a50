"""Checks the versions of Airflow and its Spark provider, since the operators use private names of both."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping

from packaging.version import Version

SUPPORTED: Mapping[str, tuple[str, str]] = {
    "apache-airflow-core": ("3.3.2", "3.4"),
    "apache-airflow-providers-apache-spark": ("6.3.4", "6.4"),
}
"""First supported and first unsupported version, by distribution."""


class UnsupportedVersion(ImportError):
    """The installed version of a distribution is not supported.

    Attributes:
        distribution: its name.
        installed: its version; None if it is not installed.
    """

    def __init__(self, message: str, *, distribution: str = "", installed: str | None = None) -> None:
        super().__init__(message)
        self.distribution = distribution
        self.installed = installed


def require_supported(installed: Mapping[str, str] | None = None) -> None:
    """Raises UnsupportedVersion unless every installed version is in `SUPPORTED`.

    Modules of operators and the plugin call it at import: Airflow shows the message as an import error.

    Args:
        installed: versions by distribution; by default those of this environment.
    """
    for name, (first, unsupported) in SUPPORTED.items():
        found = installed.get(name) if installed is not None else _installed(name)
        if found is None or not Version(first) <= Version(found) < Version(unsupported):
            raise UnsupportedVersion(
                f"stateflow's Airflow operators need {name} >={first},<{unsupported}; installed: {found or 'none'}"
                f"\n  hint: pip install '{name}>={first},<{unsupported}'",
                distribution=name,
                installed=found,
            )


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
