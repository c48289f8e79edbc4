"""Three replicas behind the shipped Envoy are restarted one after another: users who ask again once see no error."""

import asyncio

import grpc
import psutil
import pytest

from loadtest.bench.runner.server import SCRIPTED, ServerProcess
from tests.deploy.conftest import LOCAL, run_site
from tests.support.envoy import BEHIND_ENVOY
from tests.support.named_users import NamedUsers, names_of
from tests.support.server import eventually

pytestmark = [pytest.mark.serial, pytest.mark.full]

USERS = [f"user-{number}" for number in range(30)]
PAUSE_S = 0.05
RETRY_S = 0.3
"""As RetryInfo and the backoff of the clients say, about."""


async def ask_on(callers: NamedUsers, user: str, is_over: asyncio.Event) -> int:
    """Ask all the time, each request at most twice; return how many were answered."""
    sequence = 0
    while not is_over.is_set():
        sequence += 1
        try:
            await callers.complete(names_of(user), sequence)
        except grpc.aio.AioRpcError:
            await asyncio.sleep(RETRY_S)
            await callers.complete(names_of(user), sequence)
        await asyncio.sleep(PAUSE_S)
    return sequence


async def test_a_rolling_restart_shows_no_error_to_users_who_ask_again_once(envoy_binary: str) -> None:
    is_over, restarted = asyncio.Event(), []
    with run_site(3) as site:
        async with NamedUsers(site.envoy.address) as callers, asyncio.TaskGroup() as group:
            asking = [group.create_task(ask_on(callers, user, is_over)) for user in USERS]
            try:
                for number, old in enumerate(site.replicas):
                    await eventually(lambda: site.envoy.num_healthy() == 3)
                    process = psutil.Process(old.pid)
                    process.terminate()
                    await eventually(lambda p=process: p.status() == psutil.STATUS_ZOMBIE)  # type: ignore[misc]
                    address = f"server.listen={old.ready['address']}"
                    settings = (*BEHIND_ENVOY, *SCRIPTED, "engine.scripted_times=instant", address)
                    made = asyncio.to_thread(ServerProcess, LOCAL, settings, f"restarted-{number}", has_metrics=True)
                    restarted.append(await made)
                await eventually(lambda: site.envoy.num_healthy() == 3)
                is_over.set()
                done, _ = await asyncio.wait(asking, timeout=30)
            finally:
                for each in restarted:
                    each.stop()
    assert len(done) == len(USERS)
    assert min(task.result() for task in done) > 1
