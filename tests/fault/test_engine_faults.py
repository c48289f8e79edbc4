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

UNAVAILABLE, REFUSED = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION
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


@pytest_asyncio.fixture
async def fleet() -> Fleet:
    return Fleet()


@pytest_asyncio.fixture
async def server(fleet: Fleet) -> AsyncIterator[RunningServer]:
    config = endless_config(
        "engine.warm_up=true", "engine.hang_timeout_s=1", "engine.heartbeat_s=0.3",
        "engine.start_timeout_s=2", "engine.min_step_timeout_s=1",
        "engine.restart_backoff_min_s=0.05", "engine.restart_backoff_max_s=0.1", "engine.max_failed_starts=0",
    )  # fmt: skip
    async with run_server(config, fleet) as running:
        yield running


async def is_serving(server: RunningServer) -> bool:
    check = health_pb2.HealthCheckRequest(service="completion.v1.CompletionService")
    answer = await health_pb2_grpc.HealthStub(server.channel).Check(check, timeout=5)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def final_code(call: Any) -> grpc.StatusCode:
    """Read the rest of a call, and return its status."""
    async with asyncio.timeout(20):
        with contextlib.suppress(grpc.aio.AioRpcError):
            async for _event in call:
                pass
        code: grpc.StatusCode = await call.code()
        return code


async def check_restarted(server: RunningServer) -> None:
    """Wait until a new engine serves. The time without an engine may be too short to be seen."""
    await eventually(lambda: server.count("completion_engine_restarts_total") >= 1)
    await eventually(lambda: bool(server.count("completion_engine_ready")))
    await eventually(lambda: is_serving(server))
    assert (await ask(server.stub, request(max_tokens=5))).reason == "length"


@pytest.mark.parametrize("fault", [ScriptedEngine.crash, ScriptedEngine.hang])
async def test_open_streams_end_unavailable_and_a_new_engine_serves(
    server: RunningServer, fleet: Fleet, fault: Callable[[ScriptedEngine], None]
) -> None:
    calls = [server.stub.Complete(request(max_tokens=ENDLESS, session_id=f"s{i}")) for i in range(3)]
    for call in calls:
        await anext(aiter(call))
    before = server.count("completion_engine_generated_tokens_total")
    fault(fleet.engines[-1])
    assert [await final_code(call) for call in calls] == [UNAVAILABLE] * 3
    await check_restarted(server)
    assert len(fleet.engines) == 2
    assert server.count("completion_engine_restarts_total") == 1
    assert server.count("completion_engine_generated_tokens_total") > before, "counters go on"


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
    fault(fleet.engines[-1])
    await check_restarted(server)
    assert fleet.num_failing_starts == 0


async def test_while_the_engine_is_down_callers_get_a_retry_time(server: RunningServer, fleet: Fleet) -> None:
    fleet.num_failing_starts = ENDLESS
    fleet.engines[-1].crash()
    await eventually(lambda: len(fleet.engines) >= 4)
    assert not await is_serving(server)
    call = server.stub.Complete(request())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await anext(aiter(call))
    assert caught.value.code() is UNAVAILABLE
    status = rpc_status.from_call(caught.value)
    assert status is not None
    info, retry = ErrorInfo(), RetryInfo()
    assert [detail.Unpack(each) for detail, each in zip(status.details, (info, retry), strict=True)] == [True, True]
    assert (info.reason, retry.retry_delay.ToMilliseconds()) == ("ENGINE_NOT_READY", 1000)
    fleet.num_failing_starts = 0
    await eventually(lambda: is_serving(server))


async def test_a_server_whose_engine_does_not_start_again_ends_and_says_why(fleet: Fleet) -> None:
    config = endless_config(
        "engine.restart_backoff_min_s=0.01", "engine.restart_backoff_max_s=0.01", "engine.max_failed_starts=3"
    )

    async def serve() -> None:
        async with run_server(config, fleet) as server:
            fleet.num_failing_starts = ENDLESS
            fleet.engines[-1].crash()
            await asyncio.wait([server.task], timeout=20)

    why = r"no engine started in 3 tries \(engine.max_failed_starts\): .*no memory left"
    with pytest.raises(EngineDeadError, match=why):
        await serve()
    assert len(fleet.engines) == 1 + 3


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


async def test_a_prompt_that_stops_the_engine_twice_does_not_keep_others_out(server: RunningServer) -> None:
    """Two callers retry for ever: one with a prompt that stops the engine, and one that runs at each failure."""

    async def ask_until(name: str, max_tokens: int, last: grpc.StatusCode) -> set[grpc.StatusCode]:
        codes = []
        while codes[-1:] != [last]:
            answer = await ask(server.stub, request(f"{name} = ", max_tokens=max_tokens, session_id=name))
            codes.append(answer.code)
            await asyncio.sleep(0.05)  # not faster than a user may ask
        return set(codes)

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(ask_until("innocent", 60, grpc.StatusCode.OK))
        poison = group.create_task(ask_until("poison", POISON_TOKENS, REFUSED))
    assert poison.result() == {UNAVAILABLE, REFUSED}
    answer = await ask(server.stub, request("poison = ", max_tokens=5))
    assert (answer.code, "suspected of stopping" in answer.details) == (REFUSED, True)
    assert server.count("completion_engine_restarts_total") == 2
    assert (await ask(server.stub, request(max_tokens=5))).reason == "length"
