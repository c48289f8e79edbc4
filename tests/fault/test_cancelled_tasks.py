"""Every task that lives as long as the server ends when it is cancelled, whatever it waits for."""

import asyncio
import dataclasses
import gc
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio.connection import AbstractConnection

from completion_server.api.rpc.intake import Intake
from completion_server.api.rpc.session import SessionCall, StreamTimes
from completion_server.app.shared_state import SharedState
from completion_server.config import load_config
from completion_server.core.clock import MonotonicClock
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from completion_server.engine.settings import EngineSettings
from completion_server.engine.supervisor import SupervisedEngine
from completion_server.requests.limits.day_tokens import DayTokens
from completion_server.requests.loop_lag import LoopLagMonitor
from completion_server.requests.service import Service
from completion_server.requests.settings import ServingSettings
from completion_server.state.clients import make_client
from completion_server.state.redis_store import RedisStore
from completion_server.state.settings import RedisSettings
from completion_server.state.subscription import ChannelSubscription
from loadtest.simulation import virtual_time
from loadtest.simulation.virtual_time import LoopClock
from tests.support.authentication import callers
from tests.support.cancels import ENDS_WITHIN_S, LongLived, check_ends_at_each_await
from tests.support.constants import with_constants
from tests.support.redis_servers import RedisServer, free_port
from tests.support.services import FOUR_SLOTS, NO_SHEDDING, REQUEST, UNLIMITED, Prompts, running_service
from tests.unit.api.rpc.test_session_writes import CALLER, LIMITS, Client
from tests.unit.state.stores import new_prefix

Running = Coroutine[Any, Any, Any]
NUM_AWAITS = 30
TIMES = ServiceTimes(decode_base_s=0.01, prefill_base_s=0.01)


# On Redis, which redis-py reaches through code that may swallow a cancel


def redis_settings(make_redis: Callable[..., RedisServer], state: str) -> RedisSettings:
    if state == "one server":
        return with_constants(RedisSettings(addresses=(make_redis().address,)), retry_s=0.01)
    address = f"127.0.0.1:{free_port()}"
    return with_constants(RedisSettings(addresses=(address,), topology="cluster", secret_file="secret"), retry_s=0.01)


@asynccontextmanager
async def repeating(act: Callable[[], object], pause_s: float, *others: Running) -> AsyncIterator[None]:
    """Act again and again, beside other tasks."""

    async def repeat() -> None:
        while True:
            act()
            await asyncio.sleep(pause_s)

    tasks = [asyncio.create_task(each) for each in (repeat(), *others)]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=1.0)


@asynccontextmanager
async def store(settings: RedisSettings) -> AsyncIterator[Running]:
    """Yield a store that always has something to send."""
    made = RedisStore(settings, MonotonicClock())
    async with repeating(lambda: made.call_nowait("PING"), 0.001):
        yield made.run()


@asynccontextmanager
async def subscription(settings: RedisSettings) -> AsyncIterator[Running]:
    """Yield a subscription to a channel on which messages arrive all the time."""
    client, sender, channel = make_client(settings), RedisStore(settings, MonotonicClock()), new_prefix()
    async with repeating(lambda: sender.call_nowait("SPUBLISH", channel, b""), 0.001, sender.run()):
        yield ChannelSubscription(settings, client, channel, lambda _data: None).run()
    await client.aclose()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # redis-py forgets what it was opening
@pytest.mark.parametrize("make", [store, subscription])
@pytest.mark.parametrize("state", ["no node", "one server"])
async def test_what_speaks_to_redis_ends(make_redis: Callable[..., RedisServer], make: Any, state: str) -> None:
    settings = redis_settings(make_redis, state)
    connections, transports = open_connections(), open_transports()
    await check_ends_at_each_await(lambda: make(settings), NUM_AWAITS)
    for connection in open_connections() - connections:
        await connection.disconnect(nowait=True)  # else it warns when it is collected, maybe in another test
    for transport in open_transports() - transports:
        transport.abort()
    await asyncio.sleep(0)
    gc.collect()
    assert open_connections() <= connections


def open_connections() -> set[AbstractConnection]:
    """Return the connections that nothing has closed, also those that redis-py has forgotten."""
    return {each for each in gc.get_objects() if issubclass(type(each), AbstractConnection) and each.is_connected}


def open_transports() -> set[asyncio.Transport]:
    """Return the open transports, also those of connections that were only being opened."""
    transports = (each for each in gc.get_objects() if issubclass(type(each), asyncio.Transport))
    return {each for each in transports if not each.is_closing()}


# In virtual time


@asynccontextmanager
async def loop_lag() -> AsyncIterator[Running]:
    yield LoopLagMonitor(0.1, LoopClock(), lambda _event: None).run()


def shared_part(name: str) -> LongLived:
    """Return a part that replicas share, or all of them together, beside a Redis that nothing listens to."""

    @asynccontextmanager
    async def make() -> AsyncIterator[Running]:
        shared = SharedState(load_config(None, ['redis.addresses=["127.0.0.1:1"]'], {}), LoopClock())
        assert shared.lanes is not None
        shared.add_up(days := DayTokens(lambda: 10.0))
        days.charge("acme", 7)
        parts = {
            "lanes": shared.lanes,
            "day sums": shared._day_sums,
            "cache": shared.cache,
        }
        yield parts[name].run()  # type: ignore[union-attr]

    return make


def supervisor(*, dies: bool) -> LongLived:
    """Return a supervisor of an engine that gets heartbeats, or of engines that die again and again."""

    @asynccontextmanager
    async def make() -> AsyncIterator[Running]:
        engines = []

        def make_engine() -> ScriptedEngine:
            engines.append(ScriptedEngine(times=TIMES))
            return engines[-1]

        settings = with_constants(EngineSettings(hang_timeout_s=2.0), heartbeat_s=0.5, restart_backoff_min_s=0.1)
        supervised = SupervisedEngine(make_engine, settings, LoopClock())
        await supervised.start()
        numbers = itertools.count()
        async with repeating(lambda: dies and next(numbers) and engines[-1].crash(), 0.5):
            yield supervised.run()
        await supervised.stop()

    return make


@asynccontextmanager
async def service() -> AsyncIterator[Running]:
    """Yield a service that gets a request every few milliseconds."""
    engine = SupervisedEngine(lambda: ScriptedEngine(times=TIMES), EngineSettings(warm_up=False), LoopClock())
    await engine.start()
    settings = ServingSettings(UNLIMITED, FOUR_SLOTS, NO_SHEDDING)
    made = Service(settings, engine, Prompts(), LoopClock(), lambda _event: None)
    numbers = itertools.count()

    def ask() -> None:
        number = next(numbers)
        made.open(dataclasses.replace(REQUEST, id=f"r{number}", sequence=number))

    made.gate.set_engine_ready(True)
    async with repeating(ask, 0.005, engine.run()):
        yield made.runner.run()
    await engine.stop()


@asynccontextmanager
async def session_stream() -> AsyncIterator[Running]:
    """Yield a stream whose user types without end."""
    client, numbers = Client(), itertools.count(1)

    def type_on() -> None:
        client.ask(number := next(numbers), prefix=f"x{number} = ")

    async with running_service(lambda: ScriptedEngine(times=TIMES), LoopClock()) as running:
        intake = Intake(LIMITS, callers(), 10.0, running.service.now)
        times = StreamTimes(first_request_s=1e6, idle_s=1e6, max_age_s=1e6, stall_timeout_s=60.0)
        async with repeating(type_on, 0.005):
            yield SessionCall(running.service, intake, times, client, CALLER).run()  # type: ignore[arg-type]


IN_VIRTUAL_TIME = {
    "loop lag": loop_lag,
    **{name: shared_part(name) for name in ("lanes", "day sums", "cache")},
    "engine": supervisor(dies=False),
    "engines that die": supervisor(dies=True),
    "service": service,
    "session": session_stream,
}


@pytest.mark.parametrize("make", IN_VIRTUAL_TIME.values(), ids=IN_VIRTUAL_TIME.keys())
def test_a_task_of_the_server_ends(make: LongLived) -> None:
    virtual_time.run(check_ends_at_each_await(make, NUM_AWAITS, reached_within_s=1e6, ends_within_s=ENDS_WITHIN_S))
