"""Effects of engine failures on callers, with a scripted engine that can fail in every way."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from completion_server.config import Config
from completion_server.core.errors import ConfigError
from completion_server.engine.interface import EngineDeadError, GenerationRequest
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from tests.support.server import (
    ENDLESS,
    RunningServer,
    ask,
    endless_config,
    endless_engine,
    eventually,
    make_config,
    request,
    run_server,
)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


POISON_TOKENS = 13
"""The max_tokens of a request that stops the engine."""


def endless(generation: GenerationRequest) -> Iterable[str]:
    for i in range(ENDLESS):
        if generation.max_tokens == POISON_TOKENS:
            raise RuntimeError("this request is too much")
        yield f" w{i}"


class Fleet:
    """Makes one engine after another, and remembers them."""

    def __init__(self) -> None:
        self.engines: list[ScriptedEngine] = []
        self.num_failing_starts = 0
        self.spoil: Callable[[ScriptedEngine], None] = lambda engine: engine.crash("no memory left")

    def __call__(self) -> ScriptedEngine:
        engine = endless_engine(endless, ServiceTimes(start_s=0.05, decode_base_s=0.005))
        if self.engines and self.num_failing_starts:
            self.num_failing_starts -= 1
            self.spoil(engine)
        self.engines.append(engine)
        return engine

    @property
    def current(self) -> ScriptedEngine:
        return self.engines[-1]


@pytest_asyncio.fixture
async def fleet() -> Fleet:
    return Fleet()


@pytest_asyncio.fixture
async def server(fleet: Fleet) -> AsyncIterator[RunningServer]:
    config = endless_config(
        "engine.warm_up=true", "engine.hang_timeout_s=2", "engine.heartbeat_s=0.5",
        "engine.start_timeout_s=2", "engine.step_timeout_s=2",
        "engine.restart_backoff_min_s=0.05", "engine.restart_backoff_max_s=0.1", "engine.max_failed_starts=0",
    )  # fmt: skip
    async with run_server(config, fleet) as running:
        yield running


async def health(server: RunningServer, service: str = "completion.v1.CompletionService") -> int:
    stub = health_pb2_grpc.HealthStub(server.channel)
    return int((await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)).status)


async def final_code(call: Any) -> grpc.StatusCode:
    """Read the rest of a call, and return its status."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        async for _event in call:
            pass
    code: grpc.StatusCode = await call.code()
    return code


async def until_serving(server: RunningServer) -> None:
    async def is_serving() -> bool:
        return await health(server) == SERVING

    await eventually(is_serving)


async def until_restarted(server: RunningServer) -> None:
    """Wait until a new engine serves. The time without an engine may be too short to be seen."""
    await eventually(lambda: server.count("completion_engine_restarts_total") >= 1)
    await eventually(lambda: bool(server.count("completion_engine_ready")))
    await until_serving(server)


async def test_open_streams_end_unavailable_and_a_new_engine_serves(server: RunningServer, fleet: Fleet) -> None:
    assert await health(server) == SERVING
    calls = [server.stub.Complete(request(max_tokens=ENDLESS, session_id=f"s{i}")) for i in range(5)]
    for call in calls:
        await anext(aiter(call))
    fleet.current.crash()
    for call in calls:
        assert await asyncio.wait_for(final_code(call), 20) is grpc.StatusCode.UNAVAILABLE
    await until_restarted(server)
    answer = await ask(server.stub, request(max_tokens=5))
    assert answer.reason == "length"
    assert len(fleet.engines) == 2
    assert server.count("completion_engine_restarts_total") == 1


async def test_a_server_whose_engine_does_not_start_again_ends_and_says_why(fleet: Fleet) -> None:
    config = endless_config(
        "engine.restart_backoff_min_s=0.01", "engine.restart_backoff_max_s=0.01", "engine.max_failed_starts=3"
    )
    why = r"no engine started in 3 tries \(engine.max_failed_starts\): .*no memory left"
    with pytest.raises(EngineDeadError, match=why):
        await _serve_until_the_engine_fails(config, fleet)
    assert len(fleet.engines) == 1 + 3


async def _serve_until_the_engine_fails(config: Config, fleet: Fleet) -> None:
    """Serve until an engine dies and no other one starts. Raises how the server ended."""
    async with run_server(config, fleet) as server:
        fleet.num_failing_starts = ENDLESS
        fleet.current.crash()
        await asyncio.wait([server.task], timeout=20)


async def test_while_the_engine_is_down_callers_get_a_retry_time(server: RunningServer, fleet: Fleet) -> None:
    fleet.num_failing_starts = ENDLESS
    fleet.current.crash()
    await eventually(lambda: len(fleet.engines) >= 4)
    assert await health(server) == NOT_SERVING
    call = server.stub.Complete(request())
    assert await call.code() is grpc.StatusCode.UNAVAILABLE
    try:
        await anext(aiter(call))
    except grpc.aio.AioRpcError as error:
        status = rpc_status.from_call(error)
    assert status is not None
    info, retry = ErrorInfo(), RetryInfo()
    assert [detail.Unpack(each) for detail, each in zip(status.details, (info, retry), strict=True)] == [True, True]
    assert info.reason == "ENGINE_NOT_READY"
    assert retry.retry_delay.ToMilliseconds() == 1000
    fleet.num_failing_starts = 0
    await until_serving(server)


def out_of_files(_engine: ScriptedEngine) -> None:
    raise OSError("too many open files")


@pytest.mark.parametrize(
    ("fault", "num_failing_starts", "spoil"),
    [
        (ScriptedEngine.hang, 0, ScriptedEngine.crash),
        (ScriptedEngine.crash, 1, ScriptedEngine.hang),
        (ScriptedEngine.crash, 2, out_of_files),
    ],
    ids=["it hangs while idle", "the next one hangs while it warms up", "the next two do not start"],
)
async def test_an_engine_is_replaced_until_one_serves(
    server: RunningServer,
    fleet: Fleet,
    fault: Callable[[ScriptedEngine], None],
    num_failing_starts: int,
    spoil: Callable[[ScriptedEngine], None],
) -> None:
    fleet.num_failing_starts, fleet.spoil = num_failing_starts, spoil
    fault(fleet.current)
    await until_restarted(server)
    assert fleet.num_failing_starts == 0
    assert (await ask(server.stub, request(max_tokens=5))).reason == "length"


async def test_a_failed_first_start_ends_the_server() -> None:
    engine = ScriptedEngine()
    engine.crash("weights are missing")
    with pytest.raises(EngineDeadError, match="weights are missing"):
        async with run_server(make_config(), lambda: engine):
            pass


async def test_a_port_in_use_is_reported_before_the_model_is_loaded(server: RunningServer) -> None:
    engine = ScriptedEngine()
    for key, address in (
        ("listen", server.ready.address),
        ("admin_listen", server.ready.admin_address),
        ("metrics_listen", server.ready.metrics_address),
    ):
        with pytest.raises(ConfigError, match=f"server.{key}: can't listen on {address}"):
            async with run_server(make_config(f"server.{key}={address}"), lambda: engine):
                pass
        assert not engine.is_alive


async def test_counters_continue_after_a_restart(server: RunningServer, fleet: Fleet) -> None:
    await ask(server.stub, request(max_tokens=50))
    before = server.count("completion_engine_generated_tokens_total")
    assert before >= 50
    seen = []
    fleet.num_failing_starts = 2
    fleet.current.crash()
    async with asyncio.timeout(30):
        while server.count("completion_engine_restarts_total") < 3 or not server.count("completion_engine_ready"):
            seen.append(server.count("completion_engine_generated_tokens_total"))
            await asyncio.sleep(0.01)
    assert seen[0] == before
    assert seen == sorted(seen)
    assert seen[-1] < 2 * before + 100  # warm-ups count, the past does not count twice


async def test_a_prompt_that_stops_the_engine_twice_does_not_keep_others_out(server: RunningServer) -> None:
    """Two callers retry for ever: one with a prompt that stops the engine, and one that runs at each failure."""
    poison = request("poison = ", max_tokens=POISON_TOKENS, session_id="bad")
    codes: list[grpc.StatusCode] = []

    async def poison_it() -> None:
        while codes[-1:] != [grpc.StatusCode.FAILED_PRECONDITION]:
            codes.append((await ask(server.stub, poison)).code)
            await asyncio.sleep(0.05)  # not faster than a user may ask

    async with asyncio.timeout(60):
        innocent = asyncio.create_task(until_served(server))
        await poison_it()
        await innocent
    assert set(codes) == {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION}
    answer = await ask(server.stub, poison)
    assert "suspected of stopping" in answer.details
    assert server.count("completion_engine_restarts_total") == 2
    assert (await ask(server.stub, request("poison = ", max_tokens=5))).code is grpc.StatusCode.FAILED_PRECONDITION
    assert (await ask(server.stub, request(max_tokens=5))).reason == "length"


async def until_served(server: RunningServer) -> None:
    innocent = request("innocent = ", max_tokens=60, session_id="good")
    while (await ask(server.stub, innocent)).code is not grpc.StatusCode.OK:
        await asyncio.sleep(0.05)
