"""Measures the CPU time of a request in this process: the service without gRPC, and the parts that it calls.

Everything runs in virtual time, so that each pass does the same work in the same order, and waits for nothing:

- the front end: the service behind the server's session streams, on which messages come and go as bytes;
- the service: admission, scheduler, prompts, text rules, metrics and the scripted engine;
- the prompts alone: the prompts that the service built, built again;
- the scripted engine alone: the generations that the service started, started and aborted again at the same times.

The event loop is asyncio's own. The server's loop, uvloop, sets timers and starts tasks in less time.
"""

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client import CollectorRegistry

from completion_server.admission.settings import AdmissionSettings
from completion_server.core.outcome import End
from completion_server.core.request import Request
from completion_server.engine.interface import GenerationRequest, Output
from completion_server.engine.scripted.engine import ScriptedEngine
from completion_server.engine.settings import EngineSettings
from completion_server.engine.supervisor import SupervisedEngine
from completion_server.prompt.builder import Prompt, PromptBuilder
from completion_server.scheduling.settings import SchedulingSettings
from completion_server.serving.completion import Completion
from completion_server.serving.generate import Generates, Prompts
from completion_server.serving.service import Service
from completion_server.serving.settings import ServingSettings
from completion_server.telemetry.metrics import Metrics
from loadtest.bench.requests import streams
from loadtest.bench.requests.streams import Key, keys_of
from loadtest.simulation import virtual_time
from loadtest.simulation.virtual_time import LoopClock
from loadtest.targets.editor import is_typed_along
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.typed import Trace

_NUM_SLOTS = 128
_DELTA_PAUSE_S = 0.020

ENGINE = EngineSettings(
    kind="scripted",
    scripted_times="large_model_prefilled_apart",
    scripted_acceptance=0.82,
    draft_model="scripted",
    num_speculative_tokens=5,
    max_num_seqs=_NUM_SLOTS,
    warm_up=False,
    heartbeat_s=0,
)
SETTINGS = ServingSettings(
    AdmissionSettings(users_per_peer=0),
    SchedulingSettings(max_slots=_NUM_SLOTS),
    delta_pause_s=_DELTA_PAUSE_S,
)


class EngineCall(NamedTuple):
    """A generation that the engine was asked for. Times are the event loop's, in seconds."""

    request: GenerationRequest
    began_at: float
    ended_at: float
    is_whole: bool
    """Whether it ended by itself; if not, it was aborted at `ended_at`."""


class Passes:
    """Passes over the requests of a trace. The first one records the calls and warms up; it does not count."""

    def __init__(self, trace: Trace, scenario: Scenario, prompts: PromptBuilder) -> None:
        """Make the first pass."""
        self._trace = trace
        self._scenario = scenario
        self._prompts = prompts
        self._num_passes = 0
        self._built: list[str] = []
        """Ids of the requests whose prompts were built, in that order."""
        self._generations: list[EngineCall] = []
        keys = self._keys()
        virtual_time.run(_serve(keys, _RecordingPrompts(prompts, self._built), recorded=self._generations))
        self._generations.sort(key=lambda each: each.began_at)
        self.num_requests = len(keys)

    def measure(self) -> dict[str, float]:
        """Measure each part once; return its CPU milliseconds for a request.

        front_end: all but gRPC. pipeline: the service with the scripted engine, without session streams. prompt, and
        engine: these alone.
        """
        keys = self._keys()
        front_end = self._cpu_ms(lambda: virtual_time.run(_serve(keys, self._prompts, has_streams=True)))
        keys = self._keys()
        pipeline = self._cpu_ms(lambda: virtual_time.run(_serve(keys, self._prompts)))
        requests = {key.request.id: key.request for key in self._keys()}
        built = [requests[request_id] for request_id in self._built]
        prompt = self._cpu_ms(lambda: [self._prompts.build(request) for request in built])
        engine = self._cpu_ms(lambda: virtual_time.run(_generate(self._generations)))
        return {"front_end": front_end, "pipeline": pipeline, "prompt": prompt, "engine": engine}

    def _keys(self) -> list[Key]:
        self._num_passes += 1
        return keys_of(self._trace, self._scenario, f"pass-{self._num_passes}")

    def _cpu_ms(self, work: Callable[[], object]) -> float:
        """Return CPU milliseconds for a request, without garbage collections of what the benchmark itself holds."""
        gc.collect()
        gc.disable()
        began_s = time.process_time()
        try:
            work()
            return (time.process_time() - began_s) * 1000 / max(1, self.num_requests)
        finally:
            gc.enable()


async def _serve(
    keys: Sequence[Key],
    prompts: Prompts,
    *,
    has_streams: bool = False,
    recorded: list[EngineCall] | None = None,
) -> None:
    """Serve the requests at their times, cancelled by their users' next keys, and wait for the last end."""
    async with _serving(prompts, recorded) as service:
        if has_streams:
            await streams.serve(service, keys)
            return
        loop = asyncio.get_running_loop()
        for key in keys:
            await asyncio.sleep(key.request.received_at - loop.time())
            reader = _Reader(key, service.open(key.request))
            reader.completion.listen(reader.read)
            loop.call_at(key.typed.next_key_at_s, reader.key_pressed)
        await service.runner.wait_idle()


@contextlib.asynccontextmanager
async def _serving(prompts: Prompts, recorded: list[EngineCall] | None) -> AsyncIterator[Service]:
    clock = LoopClock()
    engine = SupervisedEngine(lambda: ScriptedEngine.from_settings(ENGINE), ENGINE, clock)
    generates = engine if recorded is None else _RecordingEngine(engine, recorded)
    service = Service(SETTINGS, generates, prompts, clock, Metrics(CollectorRegistry()).handle)
    service.gate.set_engine_ready(True)
    await engine.start()
    tasks = [asyncio.create_task(service.runner.run()), asyncio.create_task(engine.run())]
    await asyncio.sleep(0)
    yield service
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await engine.stop()


@dataclass(slots=True)
class _Reader:
    """Reads an answer as a session stream does, and cancels its request as an editor does."""

    key: Key
    completion: Completion
    text: str = ""
    has_ended: bool = False

    def read(self) -> None:
        part = None if self.has_ended else self.completion.take_nowait()
        if part is None:
            return
        self.text += part.text
        if isinstance(part, End):
            self.has_ended = True
            self.completion.note_end_written()

    def key_pressed(self) -> None:
        if not self.has_ended and not is_typed_along(self.text, self.key.typed):
            self.completion.cancel()


async def _generate(generations: Sequence[EngineCall]) -> None:
    """Start the generations at their times, and abort those that were aborted."""
    engine = ScriptedEngine.from_settings(ENGINE)
    await engine.start()
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:
        for each in generations:
            await asyncio.sleep(each.began_at - loop.time())
            task = group.create_task(_read(engine, each.request))
            if not each.is_whole:
                loop.call_at(each.ended_at, task.cancel)
    await engine.stop()


async def _read(engine: ScriptedEngine, request: GenerationRequest) -> None:
    async with aclosing(engine.generate(request)) as outputs:
        async for _output in outputs:
            pass


class _RecordingEngine:
    """Records the generations of the engine behind it."""

    def __init__(self, engine: Generates, generations: list[EngineCall]) -> None:
        """Add each generation to `generations` when it ends."""
        self._engine = engine
        self._generations = generations

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Output]:
        """Generate with the engine behind this one."""
        loop, is_whole = asyncio.get_running_loop(), False
        began_at = loop.time()
        try:
            async with aclosing(self._engine.generate(request)) as outputs:
                async for output in outputs:
                    is_whole = output.finish is not None
                    yield output
        finally:
            self._generations.append(EngineCall(request, began_at, loop.time(), is_whole))


class _RecordingPrompts:
    """Records the requests whose prompts are built."""

    def __init__(self, prompts: Prompts, built: list[str]) -> None:
        """Add the id of each request to `built`."""
        self._prompts = prompts
        self._built = built
        self.expected_new_tokens = prompts.expected_new_tokens

    def build(self, request: Request) -> Prompt:
        """Build with the builder behind this one."""
        self._built.append(request.id)
        return self._prompts.build(request)
