"""Readers that take nothing: each is ended after a bound, its engine work is freed, and memory stays flat."""

import asyncio
import ctypes
import gc
import random
import resource
from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
import psutil
import pytest
import pytest_asyncio

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_server.api.rpc.session import SessionCall
from completion_server.core.request import Request
from completion_server.engine.interface import GenerationRequest
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from tests.support.server import ENDLESS, RunningServer, endless_config, endless_engine, eventually, request, run_server

pytestmark = pytest.mark.serial

MAX_READERS = 1_000
STALL_TIMEOUT_S = 1.0
SMALL_WINDOW = [
    ("grpc.http2.bdp_probe", 0),  # else the client takes megabytes off the server's hands without anybody reading
    ("grpc.http2.lookahead_bytes", 16_384),
    ("grpc.use_local_subchannel_pool", 1),
]


NUMBER = random.Random(0).randbytes(8_000).hex()
"""Long, and without repetition, which would end the completion."""

PREFIX = "# a line above\n" * 1_000 + "x = (\n    "
"""As long as a file: the memory of a request must be freed with it."""


def much(_request: GenerationRequest) -> Iterable[str]:
    """Yield lines that stay inside the block opened by the request."""
    return (f"    0x{NUMBER}{number},\n" for number in range(ENDLESS))


@pytest_asyncio.fixture
async def engine() -> ScriptedEngine:
    return endless_engine(much, ServiceTimes(decode_base_s=0.3), max_num_seqs=2 * MAX_READERS)


@pytest_asyncio.fixture
async def server(engine: ScriptedEngine) -> AsyncIterator[RunningServer]:
    config = endless_config(
        f"server.stall_timeout_s={STALL_TIMEOUT_S}",
        f"scheduling.max_slots={2 * MAX_READERS}",
        f"engine.max_num_seqs={2 * MAX_READERS}",
        "engine.heartbeat_s=0",
        "scheduling.single_flight=false",  # a generation for each reader: its memory must be freed with it
        "engine.cache_scope=tenant",  # else each of many sessions has the same prompt computed anew
        "limits.max_deadline_s=600",  # on a slow machine many take longer than the default to begin
        f"server.max_concurrent_streams={2 * MAX_READERS}",
    )
    async with run_server(config, lambda: engine) as running:
        yield running


def num_ended(server: RunningServer) -> float:
    """Return how many requests were ended for their reader's sake."""
    return server.count("completion_requests_total", outcome="cancelled", trigger="automatic", shed_reason="")


def num_held() -> int:
    """Return how many requests and streams the server still holds, although no client reads or closes its stream."""
    gc.collect()
    return sum(type(each) in {Request, SessionCall} for each in gc.get_objects())


def memory_in_use() -> int:
    """Return the resident bytes of this process, without the freed memory that the C allocator keeps."""
    ctypes.CDLL(None).malloc_trim(0)
    return psutil.Process().memory_info().rss


def long_request(number: int) -> pb.CompleteRequest:
    return request(session_id=f"s{number}", mode=pb.MODE_MULTI_LINE, max_tokens=5_000, prefix=PREFIX)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("num_readers", [300, pytest.param(MAX_READERS, marks=pytest.mark.full)])
async def test_memory_stays_flat_with_many_stalled_readers(
    server: RunningServer, engine: ScriptedEngine, num_readers: int
) -> None:
    """Server and clients share a process here, so memory held by the clients counts too."""
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 256
    held = num_held()  # by other tests
    async with grpc.aio.insecure_channel(server.ready.address, options=SMALL_WINDOW) as channel:
        stub = CompletionServiceStub(channel)
        await stall(stub, 50, first=0)  # allocates the memory that is allocated once
        await eventually(lambda: num_ended(server) == 50, 60)
        before = memory_in_use()
        calls = await stall(stub, num_readers, first=50)
        await eventually(lambda: num_ended(server) == 50 + num_readers, 120)
        await eventually(lambda: engine.stats().num_running == 0)
        grown = memory_in_use() - before
        assert grown / num_readers < 256 * 1024
        await eventually(lambda: num_held() <= held)
        for call in calls:
            call.cancel()


async def stall(stub: CompletionServiceStub, num: int, first: int) -> list[Any]:
    """Begin `num` long completions and read nothing of them."""
    calls = [stub.Complete(long_request(first + number)) for number in range(num)]
    # One that is answered late may have been ended already.
    await asyncio.gather(*(call.wait_for_connection() for call in calls), return_exceptions=True)
    return calls
