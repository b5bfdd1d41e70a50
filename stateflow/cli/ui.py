"""The command ui: the pages of jobs."""

from __future__ import annotations

from pathlib import Path

import click

from stateflow.cli.common import print_text
from stateflow.cli.queries import TOKEN_FILE, read_token
from stateflow.errors import ConfigError, EnvironmentUnsupported
from stateflow.process_limits import ends_at_sigterm

_MIB = 1 << 20


@click.command()
@click.option(
    "--job-root",
    "job_roots",
    multiple=True,
    metavar="URI",
    help="Job root to show: a path, or a file://, s3://, gs://, az:// or webhdfs:// URI. Repeatable.",
)
@click.option(
    "--roots",
    "folders",
    multiple=True,
    metavar="DIR",
    help="Folder or prefix below which job roots are found, up to four folders deep and 500 of them. Repeatable.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), default=8480, show_default=True, help="Port; 0 for a free one.")
@click.option(
    "--token-file",
    type=TOKEN_FILE,
    help="File with the token that users must enter; required unless the address is a loopback address.",
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="Name of a host by which users reach the server, such as that of a proxy. Repeatable.",
)
@click.option(
    "--memory-mib", type=click.IntRange(16), default=256, show_default=True, help="Memory for records of the history."
)
def ui(
    job_roots: tuple[str, ...],
    folders: tuple[str, ...],
    host: str,
    port: int,
    token_file: Path | None,
    allowed_hosts: tuple[str, ...],
    memory_mib: int,
) -> None:
    """Show jobs in a browser: state, timeline, checkpoints, savepoints and journal. Ends at SIGINT or SIGTERM.

    It only reads, and needs neither Airflow nor a run. A job root that cannot be reached is shown as such.
    """
    if not job_roots and not folders:
        raise ConfigError("no job root is given", hint="pass --job-root URI, or --roots DIR")
    try:
        from stateflow.ui.catalog import RootCatalog
        from stateflow.ui.roots import RootLimits
        from stateflow.ui.server import PagesServer, PagesSettings, check_hosts
    except ModuleNotFoundError as e:
        raise EnvironmentUnsupported(
            "a package for the pages is not installed", hint="pip install 'stateflow[ui]'", package=e.name
        ) from e
    check_hosts(frozenset(allowed_hosts))
    settings = PagesSettings(
        host=host,
        port=port,
        token=read_token(token_file),
        allowed_hosts=frozenset(allowed_hosts),
        limits=RootLimits(memory=memory_mib * _MIB),
    )
    with PagesServer(RootCatalog(job_roots, folders), settings) as server, ends_at_sigterm(server.stop):
        print_text(f"pages at {server.url}")
        server.run()
