"""What a process needs to know, beside an address, to reach object storage; and how that comes to tasks."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

NAMES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ALLOW_HTTP",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_ROLE_ARN",
    "AWS_REQUEST_PAYER",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GOOGLE_ALLOW_HTTP",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_CLIENT_ID",
    "AZURE_STORAGE_CLIENT_SECRET",
    "AZURE_STORAGE_TENANT_ID",
    "AZURE_STORAGE_ENDPOINT",
    "AZURE_STORAGE_USE_EMULATOR",
    "AZURE_ALLOW_HTTP",
    "HADOOP_USER_NAME",
    "WEBHDFS_TOKEN",
)
"""Variables that go from the driver to its tasks."""


@dataclass(frozen=True)
class Credentials:
    """The driver's variables, on their way to tasks inside the closure that Spark sends them: never in a setting of
    Spark's, which its web interface shows, and never in a manifest or a log. Its `repr` has the names only."""

    variables: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def of_process(cls) -> Credentials:
        """Those of this process."""
        return cls(tuple((name, os.environ[name]) for name in NAMES if name in os.environ))

    def adopt(self) -> None:
        """Makes them this process's own: of a Spark worker, which has no others. What the host has stays where the
        driver has nothing under a name."""
        os.environ.update(self.variables)

    def __repr__(self) -> str:
        return f"Credentials({', '.join(name for name, _ in self.variables)})"
