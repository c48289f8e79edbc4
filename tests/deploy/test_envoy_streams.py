"""Streams that end in good order behind the real Envoy: idle ones, and those of an Envoy that drains."""

import asyncio
import urllib.request

import grpc
import pytest

from loadtest.bench.replicas.users import NamedUsers, names_of
from tests.deploy.conftest import Site, run_site

pytestmark = pytest.mark.full

USERS = [f"user-{number}" for number in range(60)]


def test_streams_that_servers_end_are_no_failures_of_the_replicas(envoy_binary: str) -> None:
    async def end_all(site: Site) -> None:
        async with NamedUsers(site.envoy.address) as callers:
            streams = await callers.open_streams(USERS)
            for stream in streams.values():
                assert await asyncio.wait_for(stream.call.code(), 10) is grpc.StatusCode.UNAVAILABLE
                assert "SESSION_ENDED" in str(await stream.call.trailing_metadata())
            assert len({await callers.complete(names_of(user)) for user in USERS}) == 2

    with run_site(2, "admission.first_request_s=0.5") as site:
        asyncio.run(end_all(site))
        assert site.envoy.stat("cluster.replicas.outlier_detection.ejections_enforced_total") == 0
        assert site.envoy.num_healthy() == 2


def test_an_envoy_that_drains_says_so_and_keeps_its_streams(envoy_binary: str) -> None:
    async def drain(site: Site) -> None:
        async with NamedUsers(site.envoy.address) as callers:
            stream = await callers.open_stream(names_of("ada"))
            url = f"http://{site.envoy.admin}/drain_listeners?graceful"
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(urllib.request.Request(url, method="POST"), timeout=10) as answer:
                assert answer.status == 200
            sequence = 0
            while not site.envoy.stat("http.editors.downstream_cx_drain_close") and sequence < 100:
                sequence += 1
                await callers.complete(names_of("ada"), sequence=sequence)
                await asyncio.sleep(0.05)
            assert site.envoy.stat("http.editors.downstream_cx_drain_close") > 0
            assert not stream.call.done()

    with run_site(1, drain_s=2) as site:
        asyncio.run(drain(site))
