"""Commands of a Kafka broker: one process on loopback in KRaft mode, from the JARs that the set-up downloads.

``python scripts/kafka_broker.py [PORT]`` runs one with an empty folder until it is stopped, to try jobs with.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

import pyspark

REPOSITORY = Path(__file__).resolve().parents[1]
BROKER_JARS = REPOSITORY / ".venv" / "kafka-broker"
CLIENT_JARS = REPOSITORY / ".venv" / "kafka"
"""JARs of Spark's Kafka source."""
_SHORT_LIVED = ("-Xmx256m", "-XX:TieredStopAtLevel=1")
"""Options of a JVM that runs for seconds: its second compiler would cost more time than it saves."""
_CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"


def write_settings(folder: Path, port: int, controller_port: int, settings: Mapping[str, str] | None = None) -> Path:
    """Writes the settings of a broker without redundancy; returns the file.

    Args:
        folder: for the settings and the data.
        port: of the listener for clients.
        controller_port: of the listener for the broker itself.
        settings: further settings, or other values.
    """
    values = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(folder / "logs"),
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        "auto.create.topics.enable": "false",
        "log.retention.ms": "-1",
        **(settings or {}),
    }
    properties = folder / "server.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    return properties


def format_command(properties: Path) -> list[str]:
    """Returns the command that creates the folders of an empty broker."""
    program = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(properties)]
    return _java(properties.parent, _SHORT_LIVED, program)


def broker_command(properties: Path, java_options: Sequence[str] = _SHORT_LIVED) -> list[str]:
    """Returns the command of the broker.

    Args:
        properties: the file of `write_settings`.
        java_options: of its JVM.
    """
    return _java(properties.parent, java_options, ["kafka.Kafka", str(properties)])


def _java(folder: Path, java_options: Sequence[str], program: Sequence[str]) -> list[str]:
    java = str(Path(os.environ["JAVA_HOME"]) / "bin" / "java")
    spark_jars = Path(pyspark.__file__).parent / "jars"
    classes = f"{folder}:{BROKER_JARS}/*:{spark_jars}/*"
    return [java, *java_options, "-cp", classes, *program]


def main(arguments: Sequence[str]) -> int:
    """Runs a broker that creates topics when they are first used, until it is stopped.

    Returns:
        The exit code of a broker that ends by itself; 0 after a signal.
    """
    port = int(arguments[0]) if arguments else 9092
    # A shell without job control starts commands in the background with SIGINT ignored, and nohup ignores SIGHUP.
    is_kept = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    for number in (signal.SIGINT, signal.SIGTERM, *([] if is_kept else [signal.SIGHUP])):
        signal.signal(number, _interrupt)
    with tempfile.TemporaryDirectory(prefix="stateflow-broker-") as folder, suppress(KeyboardInterrupt):
        settings = {"auto.create.topics.enable": "true", "num.partitions": "2"}
        properties = write_settings(Path(folder), port, port + 1, settings)
        subprocess.run(format_command(properties), check=True, stdout=subprocess.DEVNULL)
        print(f"a broker at 127.0.0.1:{port}; Ctrl-C ends it", flush=True)
        with subprocess.Popen(broker_command(properties), stdout=subprocess.DEVNULL) as broker:
            try:
                return broker.wait()
            finally:
                broker.terminate()
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Ends `main`, which removes its folder; further signals would interrupt that."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
