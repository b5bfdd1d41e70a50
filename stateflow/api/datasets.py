"""Names of what a job reads and writes, as OpenLineage's conventions have them.

Other tools that report the same table or topic use the same name; so lineage from one job to the next is found. No name
has a user, a password or a query of a URL.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import unquote

from stateflow.outputs import OptionalText

_SCHEMES = {"s3a": "s3", "s3n": "s3", "abfs": "abfss", "wasb": "wasbs", "gcs": "gs"}
"""Schemes with several spellings, and the one of the conventions."""
_ACCOUNT = "AZURE_STORAGE_ACCOUNT_NAME"
_PATTERN = re.compile(r"[*?\[{]")
_LOGIN = re.compile(r"""(?<=://)(?:[^/\s'"]*|[^/\s'":\[]*:(?!\d+(?:[/?\s]|$))[^\s'"]*)@""")
"""Up to the last @ of the server; or of the URL, if no port follows the colon: a password may have a slash."""
_SECRET = re.compile(
    r"""(\b\w*(?:password|passwd|secret|token|credential|api_?key)\w*\s*=\s*)('[^']*'|"[^"]*"|[^\s,;&)]+)""",
    re.IGNORECASE,
)
_QUERY = re.compile(r"(://[^\s?]*)\?[^\s'\")]*")


@dataclass(frozen=True)
class Dataset:
    """What a source reads, or a sink writes, for lineage events.

    Attributes:
        namespace: the system, such as ``file``, ``s3://bucket`` or ``kafka://broker:9092``.
        name: its name there, such as a path or a topic.
        kind: ``TABLE``, ``FILE`` or ``TOPIC``; empty if it is not known.
        storage: ``delta`` or ``iceberg`` for tables of files; empty for others.
        file_format: of its files, if that is known.
        tables: names of the same table in catalogs, as pairs of namespace and name.
        version: of a source's table: the newest one whose rows were read.
        added: fields of a source's rows that are not columns of the dataset.
    """

    namespace: str
    name: str
    kind: OptionalText = ""
    storage: OptionalText = ""
    file_format: OptionalText = ""
    tables: tuple[tuple[str, str], ...] = ()
    version: OptionalText = ""
    added: frozenset[str] = frozenset()


def path_name(address: str) -> tuple[str, str]:
    """Returns namespace and name of a folder, which may be given as a pattern of paths, by OpenLineage's conventions.

    A local path has the namespace ``file``; a bucket is a namespace, and the key in it a name without slash at its
    beginning.
    """
    scheme, separator, rest = address.partition("://")
    if not separator:
        return "file", _folder(os.path.abspath(address.removeprefix("file:") or "/"))
    server, _, path = rest.partition("/")
    scheme = scheme.lower()
    scheme, server, path = _SCHEMES.get(scheme, scheme), server.rpartition("@")[2], path.partition("?")[0]
    if scheme == "file":
        return "file", _folder(f"/{unquote(path)}")
    if scheme in ("abfss", "wasbs"):
        # Here, the text before the @ is the container.
        server = rest.partition("/")[0]
        return f"{scheme}://{server}", _folder(f"/{path}")
    if scheme == "az":
        account = os.environ.get(_ACCOUNT, "")
        namespace = f"abfss://{server}@{account}.dfs.core.windows.net" if account else f"az://{server}"
        return namespace, _folder(f"/{path}")
    name = _folder(f"/{path}")
    return f"{scheme}://{server}", (name.lstrip("/") or "/") if scheme in ("s3", "gs") else name


def _folder(path: str) -> str:
    """Returns the folder above the first pattern in a path, without a slash at its end."""
    parts = path.split("/")
    fixed = next((number for number, part in enumerate(parts) if _PATTERN.search(part)), len(parts))
    return "/".join(parts[:fixed]).rstrip("/") or "/"


def without_credentials(text: str) -> str:
    """Returns a text, such as an error, without logins and queries of the URLs in it, and without ``password=…``."""
    return _SECRET.sub(r"\1…", _QUERY.sub(r"\1", _LOGIN.sub("", text)))
