"""Three replicas behind the shipped Envoy are restarted one after another: users who ask again once see no error."""

import asyncio
from collections import Counter

import grpc
import psutil
import pytest

from loadtest.bench.runner.server import SCRIPTED, ServerProcess
from tests.deploy.conftest import Site, run_site
from tests.support.envoy import BEHIND_ENVOY
from tests.support.models import ROOT
from tests.support.named_users import NamedUsers, names_of
from tests.support.server import eventually

pytestmark = [pytest.mark.serial, pytest.mark.full]

NUM_USERS = 30
PAUSE_S = 0.05
RETRY_S = 0.3
"""As RetryInfo and the backoff of the clients say, about."""


class AskingUsers:
    """Users who ask all the time, each request at most twice."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.is_over = False
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []

    async def run(self) -> None:
        async with NamedUsers(self._address) as callers, asyncio.TaskGroup() as group:
            for number in range(NUM_USERS):
                group.create_task(self._ask_on(callers, f"user-{number}"))

    async def _ask_on(self, callers: NamedUsers, user: str) -> None:
        sequence = 0
        while not self.is_over:
            sequence += 1
            try:
                await callers.complete(names_of(user), sequence)
            except grpc.aio.AioRpcError:
                self.counts["retried"] += 1
                await asyncio.sleep(RETRY_S)
                try:
                    await callers.complete(names_of(user), sequence)
                except grpc.aio.AioRpcError as error:
                    self.failures.append(f"{error.code().name}: {error.details()}")
            self.counts["asked"] += 1
            await asyncio.sleep(PAUSE_S)


async def restart(site: Site, number: int) -> ServerProcess:
    """Stop a replica as an operator does, and start another at its address."""
    old = site.replicas[number]
    process = psutil.Process(old.pid)
    process.terminate()
    await eventually(lambda: process.status() == psutil.STATUS_ZOMBIE)  # until the site is left
    settings = (*BEHIND_ENVOY, *SCRIPTED, "engine.scripted_times=instant", f"server.listen={old.ready['address']}")
    config = ROOT / "deploy" / "local" / "server.toml"
    return await asyncio.to_thread(ServerProcess, config, settings, f"restarted-{number}", has_metrics=True)


async def test_a_rolling_restart_shows_no_error_to_users_who_ask_again_once(envoy_binary: str) -> None:
    del envoy_binary
    with run_site(3) as site:
        users = AskingUsers(site.envoy.address)
        asking = asyncio.create_task(users.run())
        restarted = []
        try:
            for number in range(3):
                await eventually(lambda: asyncio.to_thread(lambda: site.envoy.num_healthy() == 3))
                restarted.append(await restart(site, number))
            await eventually(lambda: asyncio.to_thread(lambda: site.envoy.num_healthy() == 3))
            users.is_over = True
            await asyncio.wait_for(asking, 30)
        finally:
            asking.cancel()
            for each in restarted:
                each.stop()
    assert users.failures == []
    assert users.counts["asked"] > NUM_USERS
