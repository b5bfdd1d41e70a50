"""The environment variables that give access to object storage, and how the driver sends them to its tasks."""

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
    "WEBHDFS_DATANODE_PORTS",
    "WEBHDFS_NAMENODES",
    "WEBHDFS_TOKEN",
)
"""Environment variables that the driver sends to its tasks."""


@dataclass(frozen=True)
class Credentials:
    """The driver's environment variables for object storage.

    They reach the tasks inside the closure that Spark sends, never in a Spark setting, which the web interface shows,
    and never in a manifest or log. The `repr` has only the names.
    """

    variables: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def of_process(cls) -> Credentials:
        """Returns the variables that are set in this process."""
        return cls(tuple((name, os.environ[name]) for name in NAMES if name in os.environ))

    def adopt(self) -> None:
        """Sets the variables in this process, which is a Spark worker.

        A variable that the driver does not have keeps the value of the host.
        """
        os.environ.update(self.variables)

    def __repr__(self) -> str:
        return f"Credentials({', '.join(name for name, _ in self.variables)})"
