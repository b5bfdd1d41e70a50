"""The command that runs a state server."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from stateflow.cli.common import ROOT, SECONDS
from stateflow.cli.formatting import print_text
from stateflow.cli.queries.token_file import TOKEN_FILE, read_token
from stateflow.config.state_settings import RocksDBSettings
from stateflow.errors import EnvironmentUnsupported
from stateflow.process_limits import end_with_parent, isolate

if TYPE_CHECKING:
    from stateflow.serving.server import StateServer

_MIB = 1 << 20
_SWITCH_SECONDS = 0.0005


@click.command()
@ROOT
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), default=8470, show_default=True, help="Port; 0 for a free one.")
@click.option(
    "--token-file",
    type=TOKEN_FILE,
    help="File with the token that clients must send; required unless the address is a loopback address.",
)
@click.option(
    "--advertise", default="", metavar="URL", help="URL at which clients reach this server, such as that of a proxy."
)
@click.option(
    "--keep", type=click.IntRange(1, 100), default=3, show_default=True, help="Checkpoints that are kept open."
)
@click.option(
    "--poll", type=SECONDS, metavar="SECONDS", help="Time between two looks at the log; 0.05, or 1 in object storage."
)
@click.option(
    "--lease",
    type=click.FloatRange(1, 3600),
    default=10,
    show_default=True,
    metavar="SECONDS",
    help="Other servers take over the key groups of this one if it does not renew its lease for so long.",
)
@click.option(
    "--cache-mib", type=click.IntRange(8), default=256, show_default=True, help="Block cache for all open stores."
)
@click.option(
    "--memory-mib",
    type=click.IntRange(256),
    default=4096,
    show_default=True,
    help="Memory that the process may use; it ends when it needs more.",
)
@click.option(
    "--end-with", "parent", type=click.IntRange(1), metavar="PID", help="Id of the parent process, to end with it."
)
def serve(
    job_root: str,
    host: str,
    port: int,
    token_file: Path | None,
    advertise: str,
    keep: int,
    poll: float | None,
    lease: float,
    cache_mib: int,
    memory_mib: int,
    parent: int | None,
) -> None:
    """Serve the committed state of a job to queries over HTTP, until SIGINT or SIGTERM arrives.

    It serves the states that the job has named with set_queryable or as_queryable_state, and follows the job from
    checkpoint to checkpoint. Several servers of one job divide its key groups. They register in the job root, where
    clients find them. The job may run, wait or not exist yet; a server changes nothing of it.
    """
    try:
        from stateflow.serving.app import AppSettings
        from stateflow.serving.follower import FollowSettings
        from stateflow.serving.server import ServerSettings, StateServer
    except ModuleNotFoundError as e:
        raise EnvironmentUnsupported(
            "a package for state servers is not installed", hint="pip install 'stateflow[serve]'", package=e.name
        ) from e
    if parent is not None:
        # As from a user, so that the lease ends.
        end_with_parent(parent, signal.SIGTERM)
    # A forged file of a store may crash the process that opens it: that is this one, which harms no run.
    isolate(memory_mib * _MIB)
    # A query must not wait 5 ms for the thread that checks new files whenever it needs the interpreter.
    sys.setswitchinterval(_SWITCH_SECONDS)
    settings = ServerSettings(
        host=host,
        port=port,
        advertise=advertise,
        poll=None if poll is None else timedelta(seconds=poll),
        lease=timedelta(seconds=lease),
        app=AppSettings(token=read_token(token_file)),
        follow=FollowSettings(keep, RocksDBSettings(block_cache_bytes=cache_mib * _MIB)),
        fetches_apart=True,
    )
    with StateServer(job_root, settings) as server, _ends_at_sigterm(server):
        print_text(f"serving {job_root} at {server.url}")
        # A collection of all objects takes tens of milliseconds, most of it for modules.
        gc.collect()
        gc.freeze()
        server.run()


@contextmanager
def _ends_at_sigterm(server: StateServer) -> Iterator[None]:
    """Lets the server end normally at SIGTERM, also before it serves.

    While it serves, uvicorn handles the signal, and sends it to the process again when it has stopped.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        server.stop()

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
