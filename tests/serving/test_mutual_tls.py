"""Clients of a server whose proxy authenticates them by certificates."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import uvicorn

from stateflow.clock import SystemClock
from stateflow.errors import NotYetAvailable
from stateflow.serving.app import AppSettings, StateApp
from stateflow.serving.client import AsyncQueryableStateClient, QueryableStateClient
from stateflow.serving.follower import Follower, FollowSettings
from stateflow.serving.registry import Registration
from tests.servers.certificates import Certificate, certificate
from tests.serving.shops_job import ShopsJob, Total
from tests.support.errors import raises


@pytest.fixture
def trusted(tmp_path: Path) -> Certificate:
    return certificate(tmp_path)


@pytest.fixture
def jobs(tmp_path: Path, trusted: Certificate) -> Iterator[ShopsJob]:
    jobs = ShopsJob(tmp_path)
    jobs.sell(20)
    follower = Follower(jobs.storage, tmp_path / "server", SystemClock(), FollowSettings())
    assert follower.poll()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            StateApp(follower, AppSettings()).asgi(),
            log_config=None,
            lifespan="off",
            ssl_certfile=trusted.key_file,
            ssl_keyfile=str(trusted.key_file),
            ssl_ca_certs=str(trusted.ca_file),
            ssl_cert_reqs=ssl.CERT_REQUIRED,
        )
        server = uvicorn.Server(config)
        url = f"https://localhost:{listener.getsockname()[1]}"
        Registration(jobs.storage, SystemClock(), url, timedelta(hours=1)).renew(follower.groups)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        yield jobs
        server.should_exit = True
        thread.join()
    follower.close()


def test_only_a_client_with_a_certificate_gets_answers(jobs: ShopsJob, trusted: Certificate) -> None:
    ((newest, wanted),) = jobs.expected.items()
    tls = ssl.create_default_context(cafile=trusted.ca_file)
    without = ssl.create_default_context(cafile=trusted.ca_file)
    tls.load_cert_chain(trusted.key_file)
    with QueryableStateClient(jobs.root, tls=tls) as client:
        found = client.get_many("totals", list(wanted.totals), value_type=Total)
    assert [(r.checkpoint_id, r.value) for r in found] == [(newest, total) for total in wanted.totals.values()]

    async def query() -> None:
        async with AsyncQueryableStateClient(jobs.root, tls=tls) as client:
            assert len(await client.states()) == 3

    asyncio.run(query())
    for refused in (without, None):
        with QueryableStateClient(jobs.root, tls=refused, timeout=timedelta(0)) as client, raises(NotYetAvailable):
            client.states()
