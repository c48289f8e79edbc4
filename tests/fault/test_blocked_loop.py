"""The event loop stands still for two seconds: calls that were open or came meanwhile are all answered."""

import asyncio
import time

import grpc

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_server.engine.scripted.engine import ServiceTimes
from tests.support.server import ENDLESS, endless_config, endless_engine, eventually, request, run_server

BLOCKED_S = 2.0
NUM_OPEN, NUM_MEANWHILE = 5, 20
NUM_TOKENS = 50


def ask_blocking(address: str, name: str) -> pb.End:
    """Ask from another thread, which goes on while the loop stands still; return the last event's end."""
    with grpc.insecure_channel(address) as channel:
        message = request(session_id=name, max_tokens=NUM_TOKENS, mode=2)
        return list(CompletionServiceStub(channel).Complete(message, timeout=60))[-1].end


async def test_nothing_is_lost_while_the_loop_is_blocked() -> None:
    engine = endless_engine(lambda _request: (f" w{i}" for i in range(ENDLESS)), ServiceTimes(decode_base_s=0.02))
    config = endless_config("engine.hang_timeout_s=1", "engine.heartbeat_s=0.5", "scheduling.max_slots=64")
    async with run_server(config, lambda: engine) as server, asyncio.TaskGroup() as group:
        address = server.ready.address

        def ask(name: str) -> "asyncio.Task[pb.End]":
            return group.create_task(asyncio.to_thread(ask_blocking, address, name))

        asked = [ask(f"open-{number}") for number in range(NUM_OPEN)]
        await eventually(lambda: engine.stats().num_running == NUM_OPEN)
        asked += [ask(f"meanwhile-{number}") for number in range(NUM_MEANWHILE)]
        await asyncio.sleep(0)  # their threads begin
        time.sleep(BLOCKED_S)  # noqa: ASYNC251 - the fault
        ends = [await each for each in asked]
        assert {each.finish_reason for each in ends} == {pb.FINISH_REASON_LENGTH}
        assert {each.usage.completion_tokens for each in ends} == {NUM_TOKENS}
        assert server.count("completion_engine_restarts_total") == 0
