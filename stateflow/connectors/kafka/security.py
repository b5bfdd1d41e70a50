"""How a Kafka source connects: one declaration for Spark's Java client and for the driver's librdkafka client."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stateflow.errors import JobDefinitionError

_PROTOCOLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


@dataclass(frozen=True)
class KafkaSecurity:
    """TLS and login of a connection to Kafka. No `repr`, log, plan or stored file contains any of it.

    Read secrets from the environment, as in ``password=os.environ["KAFKA_PASSWORD"]``: a job file is no place for them.

    Args:
        protocol: ``SSL``, ``SASL_PLAINTEXT`` or ``SASL_SSL``.
        mechanism: for SASL, ``PLAIN``, ``SCRAM-SHA-256`` or ``SCRAM-SHA-512``.
        username: for SASL.
        password: for SASL.
        ca_file: PEM file with the certificates of trusted authorities, at the same path on the driver and on all
            executors; by default those of the operating system for the driver, and those of Java for Spark.
        key_file: PEM file with the client's certificate and its unencrypted private key in PKCS #8, for mutual TLS; at
            the same path everywhere.
        java_options: further options of Kafka's Java client, such as those of OAuth or Kerberos.
        client_options: the same for librdkafka.

    Raises:
        JobDefinitionError: protocol and login do not fit, or a file does not exist.
    """

    protocol: str
    mechanism: str = field(default="", repr=False)
    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    ca_file: str | Path = field(default="", repr=False)
    key_file: str | Path = field(default="", repr=False)
    java_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    client_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.protocol not in _PROTOCOLS:
            raise JobDefinitionError(
                "Kafka has no such security protocol", hint=f"use {', '.join(_PROTOCOLS)}", protocol=self.protocol
            )
        if self.mechanism and self.mechanism not in _LOGIN_MODULES:
            raise JobDefinitionError(
                "the login of a Kafka connection is not supported",
                hint=f"use {', '.join(_LOGIN_MODULES)}; or give java_options and client_options",
                mechanism=self.mechanism,
            )
        has_login = bool(self.mechanism and self.username and self.password)
        if self.protocol.startswith("SASL") != has_login and not self.java_options:
            raise JobDefinitionError(
                "protocol and login of a Kafka connection do not fit",
                hint="SASL needs mechanism, username and password, and SSL takes none of them",
                protocol=self.protocol,
            )
        for name, path in (("ca_file", self.ca_file), ("key_file", self.key_file)):
            if path and not os.path.isfile(path):
                raise JobDefinitionError(
                    "a file of a Kafka connection does not exist",
                    hint="give a PEM file that exists on the driver and on all executors",
                    argument=name,
                    path=str(path),
                )

    def for_java(self) -> dict[str, str]:
        """Returns the options of Kafka's Java client."""
        options = {"security.protocol": self.protocol}
        if self.mechanism:
            login = f'username="{_escaped(self.username)}" password="{_escaped(self.password)}"'
            options["sasl.mechanism"] = self.mechanism
            options["sasl.jaas.config"] = f"{_LOGIN_MODULES[self.mechanism]} required {login};"
        if self.ca_file:
            options |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": os.path.abspath(self.ca_file)}
        if self.key_file:
            options |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": os.path.abspath(self.key_file)}
        return {**options, **self.java_options}

    def for_client(self) -> dict[str, str]:
        """Returns the options of librdkafka."""
        options = {"security.protocol": self.protocol}
        if self.mechanism:
            login = {"sasl.username": self.username, "sasl.password": self.password}
            options |= {"sasl.mechanism": self.mechanism, **login}
        if self.ca_file:
            options["ssl.ca.location"] = str(self.ca_file)
        if self.key_file:
            options |= {"ssl.certificate.location": str(self.key_file), "ssl.key.location": str(self.key_file)}
        return {**options, **self.client_options}


def _escaped(text: str) -> str:
    """Returns a value for a quoted string of a JAAS configuration."""
    return text.replace("\\", "\\\\").replace('"', '\\"')
