"""A whole server in the test's own event loop: the real app, wire and prompts in front of an engine of the test's."""

import asyncio
import dataclasses
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from prometheus_client import CollectorRegistry

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_server.app.app import App, Ready
from completion_server.auth.authenticator import Authenticator
from completion_server.config import Config, load_config
from completion_server.engine.interface import Engine
from completion_server.engine.scripted.engine import Script, ScriptedEngine, ServiceTimes
from tests.support.constants import split_constants, with_constants
from tests.support.models import TARGET
from tests.support.waits import GaveUpError

FREE_PORTS = (
    "server.listen=127.0.0.1:0",
    "server.admin_listen=127.0.0.1:0",
    "server.metrics_listen=127.0.0.1:0",
)
UNHURRIED = (
    "shed.lag_ms=0", "shed.when=never", "scheduling.step_tolerance=0",
    "admission.user_tokens_per_s=0", "admission.users_per_peer=0",
    "speculation.mode=fixed", "cache.enabled=false",
)  # fmt: skip
"""Settings without limits that depend on the speed of the machine or on the load of other tests. Every request is
computed."""
UNCOMPILED = "engine.enforce_eager=true"
START_TIMEOUT_S, STOP_TIMEOUT_S = 240.0, 30.0


ENDLESS = 1_000_000
"""More tokens than any test waits for."""


def make_config(*overrides: str) -> Config:
    """Return a configuration on free ports, with the embedded target's tokenizer, for a server without haste.

    A vLLM engine of it is not compiled, which would take longer than most tests. An override may name a constant of a
    section, too.
    """
    keys, constants = split_constants(overrides)
    config = load_config(None, (*FREE_PORTS, *UNHURRIED, UNCOMPILED, f"engine.model={TARGET}", *keys), {})
    changed = {name: with_constants(getattr(config, name), **values) for name, values in constants.items()}
    return dataclasses.replace(config, **changed)


def endless_config(*overrides: str) -> Config:
    """Return a configuration that lets a request ask for ENDLESS tokens, of an engine that holds as many."""
    limits = (f"limits.max_tokens={ENDLESS}", f"engine.max_model_len={2 * ENDLESS}", "engine.warm_up=false")
    return make_config(*limits, *overrides)


def endless_engine(script: Script, times: ServiceTimes, **options: Any) -> ScriptedEngine:
    """Return an engine for an `endless_config`."""
    return ScriptedEngine(script, times, max_model_len=2 * ENDLESS, num_kv_blocks=ENDLESS, **options)


@dataclass
class RunningServer:
    """A server that serves."""

    app: App
    ready: Ready
    channel: grpc.aio.Channel
    registry: CollectorRegistry
    task: "asyncio.Task[None]"

    @property
    def stub(self) -> CompletionServiceStub:
        return CompletionServiceStub(self.channel)

    def count(self, metric: str, **labels: str) -> float:
        """Return a metric's value, 0 if it has no sample yet."""
        value = self.registry.get_sample_value(metric, labels)
        if value is None:
            assert any(metric.startswith(family.name) for family in self.registry.collect()), f"no metric {metric}"
        return value or 0.0


@asynccontextmanager
async def run_server(
    config: Config, make_engine: Callable[[], Engine], authenticator: Authenticator | None = None
) -> AsyncIterator[RunningServer]:
    """Start an app, wait until it is ready, and drain it afterwards."""
    registry = CollectorRegistry()
    app = App(config, make_engine, registry=registry, authenticator=authenticator)
    ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(app.run(ready.set_result))
    try:
        await asyncio.wait([task, ready], return_when=asyncio.FIRST_COMPLETED, timeout=START_TIMEOUT_S)
        if not ready.done():
            assert task.done(), f"the server was not ready within {START_TIMEOUT_S} s"
            await task
            raise AssertionError("the server ended before it was ready")
        async with grpc.aio.insecure_channel(ready.result().address) as channel:
            yield RunningServer(app, ready.result(), channel, registry, task)
    finally:
        app.drain(0.0)
        _, late = await asyncio.wait([task], timeout=STOP_TIMEOUT_S)
        for each in late:
            each.cancel()
        assert not late, f"the server did not end within {STOP_TIMEOUT_S} s after its drain"
        task.result()


@dataclass
class Answer:
    """What came back for one request."""

    text: str = ""
    deltas: int = 0
    end: pb.End | None = None
    code: grpc.StatusCode = grpc.StatusCode.OK
    details: str = ""

    @property
    def reason(self) -> str:
        assert self.end is not None
        return pb.FinishReason.Name(self.end.finish_reason).removeprefix("FINISH_REASON_").lower()

    def take(self, event: Any) -> None:
        """Add an event; a second end, or anything after one, is a fault."""
        assert self.end is None, "an event came after the end"
        if event.WhichOneof("event") == "delta":
            self.text += event.delta.text
            self.deltas += 1
        else:
            self.text += event.end.text
            self.end = event.end


def request(prefix: str = "x = ", suffix: str = "", **fields: Any) -> pb.CompleteRequest:
    """Return a request with the fields that most tests do not care about."""
    fields = {"session_id": "s", "sequence": 1} | fields
    return pb.CompleteRequest(prefix=prefix, suffix=suffix, **fields)


async def ask(
    stub: CompletionServiceStub,
    message: pb.CompleteRequest,
    timeout: float | None = 20.0,
    metadata: tuple[tuple[str, str], ...] = (),
) -> Answer:
    """Send a `Complete` call and return the whole answer, also if it failed."""
    answer = Answer()
    call = stub.Complete(message, timeout=timeout, metadata=metadata)
    try:
        async for event in call:
            answer.take(event)
    except grpc.aio.AioRpcError as error:
        answer.code, answer.details = error.code(), error.details() or ""
    return answer


async def next_event(call: Any, timeout_s: float = 30.0) -> Any:
    """Read the next message of a stream; fail after `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        return await call.read()


async def eventually(
    condition: Callable[[], bool | Awaitable[bool]], timeout_s: float = 30.0, poll_s: float = 0.01
) -> None:
    """Wait until a condition holds; fail after `timeout_s`, which is for machines that are busy with other things.

    The limit is in wall-clock time, also where the event loop's time is virtual.
    """
    ends_s = time.monotonic() + timeout_s
    while not (await _value_of(condition(), timeout_s)):
        if time.monotonic() >= ends_s:
            raise GaveUpError(condition, timeout_s)
        await asyncio.sleep(poll_s)


async def _value_of(value: bool | Awaitable[bool], timeout_s: float) -> bool:
    return await asyncio.wait_for(value, timeout_s) if inspect.isawaitable(value) else value


def replaced(config: Config, section: str, **values: Any) -> Config:
    """Return `config` with some keys of one section changed."""
    return dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **values)})
