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
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NamedTuple

import grpc
from prometheus_client import CollectorRegistry

from completion.v1 import completion_pb2 as pb
from completion_server.admission.callers import Callers
from completion_server.admission.settings import AdmissionSettings, LimitSettings
from completion_server.core.clock import Deadline
from completion_server.core.outcome import End
from completion_server.core.request import Caller, Mode, Request, Trigger
from completion_server.core.trace_context import no_trace
from completion_server.engine.interface import GenerationRequest, Output, Sink, Work
from completion_server.engine.scripted.engine import ScriptedEngine
from completion_server.engine.settings import EngineSettings
from completion_server.engine.supervisor import SupervisedEngine
from completion_server.prompt.builder import Prompt, PromptBuilder
from completion_server.rpc.intake import Intake
from completion_server.rpc.session import SessionCall, StreamTimes
from completion_server.scheduling.settings import SchedulingSettings
from completion_server.serving.completion import Completion
from completion_server.serving.rules import Prompts
from completion_server.serving.runner import Generates
from completion_server.serving.service import Service
from completion_server.serving.settings import ServingSettings
from completion_server.telemetry.metrics import Metrics
from loadtest.simulation import virtual_time
from loadtest.simulation.virtual_time import LoopClock
from loadtest.targets.editor import is_typed_along
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.typed import Trace, TypedRequest

_NUM_SLOTS = 128
_NEVER_S, _STALL_S, _MAX_DEADLINE_S = 1e6, 5.0, 30.0
_PEER = "192.0.2.1"
_CALLER = Caller(connection=f"{_PEER}:50000", peer=_PEER)

ENGINE = EngineSettings(
    kind="scripted",
    scripted_times="large_model_prefilled_apart",
    scripted_acceptance=0.82,
    draft_model="scripted",
    num_speculative_tokens=5,
    max_num_seqs=_NUM_SLOTS,
    warm_up=False,
)
SETTINGS = ServingSettings(
    AdmissionSettings(users_per_peer=0), SchedulingSettings(max_slots=_NUM_SLOTS), delta_pause_s=0.020
)


@dataclass(frozen=True, slots=True)
class Key:
    """A request of the trace, also as the server's type and as the message that an editor sends."""

    request: Request
    message: bytes
    typed: TypedRequest


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
        recorded = _RecordingPrompts(prompts)
        self._generations: list[EngineCall] = []
        keys = self._keys()
        virtual_time.run(_serve(keys, recorded, recorded=self._generations))
        self._generations.sort(key=lambda each: each.began_at)
        self._built = recorded.built
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
        """Return the requests of the trace in the order of their times. The callers of each pass are new."""
        self._num_passes += 1
        keys = [
            _key(each, f"pass-{self._num_passes}/{session.number}", session.language_id, self._scenario)
            for session in self._trace.sessions
            for each in session.requests
        ]
        return sorted(keys, key=lambda key: key.typed.intended_at_s)

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


def _key(typed: TypedRequest, name: str, language_id: str, scenario: Scenario) -> Key:
    is_multi_line, trigger = scenario.editor.mode == "multi_line", typed.trigger.name
    request = Request(
        id=f"{typed.session}/{typed.sequence}",
        caller=Caller("", name, connection=f"{_PEER}:50000", peer=_PEER, stream=typed.session + 1),
        sequence=typed.sequence,
        document_uri=f"file:///{typed.session}",
        language_id=language_id,
        prefix=typed.prefix,
        suffix=typed.suffix,
        max_tokens=scenario.editor.max_tokens,
        received_at=typed.intended_at_s,
        trigger=Trigger[trigger],
        mode=Mode.MULTI_LINE if is_multi_line else Mode.SINGLE_LINE,
        deadline=Deadline.after(_MAX_DEADLINE_S, typed.intended_at_s),
    )
    message = pb.CompleteRequest(
        session_id=name,
        sequence=request.sequence,
        document_uri=request.document_uri,
        language_id=request.language_id,
        prefix=request.prefix,
        suffix=request.suffix,
        trigger=pb.Trigger.Value(f"TRIGGER_{trigger}"),
        mode=pb.MODE_MULTI_LINE if is_multi_line else pb.MODE_SINGLE_LINE,
        max_tokens=request.max_tokens,
        temperature=0.0,
    )
    return Key(request, pb.SessionRequest(complete=message).SerializeToString(), typed)


async def _serve(
    keys: Sequence[Key], prompts: Prompts, *, has_streams: bool = False, recorded: list[EngineCall] | None = None
) -> None:
    """Serve the requests at their times, cancelled by their users' next keys, and wait for the last end."""
    async with _serving(prompts, recorded) as service:
        if has_streams:
            await _serve_streams(service, keys)
            return
        loop = asyncio.get_running_loop()
        for key in keys:
            await asyncio.sleep(key.request.received_at - loop.time())
            reader = _Reader(key.typed, service.open(key.request))
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

    typed: TypedRequest
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
        if not self.has_ended and not is_typed_along(self.text, self.typed):
            self.completion.cancel()


class _EditorCall:
    """The context of a call: an editor's messages come in, the server's answers go out. All are bytes."""

    def __init__(self) -> None:
        self.messages = asyncio.Queue[object]()
        self._texts: dict[int, str] = {}
        """Text of the open requests, by sequence number."""

    def send_nowait(self, key: Key) -> None:
        """Have the server receive a request, and its cancellation at the user's next key."""
        self._texts[key.typed.sequence] = ""
        self.messages.put_nowait(key.message)
        asyncio.get_running_loop().call_at(key.typed.next_key_at_s, self._key_pressed, key.typed)

    async def read(self) -> object:
        """Return the next message, or gRPC's EOF."""
        return await self.messages.get()

    async def write(self, message: pb.SessionResponse) -> None:
        """Serialise an answer's part, as gRPC does."""
        message.SerializeToString()
        if message.HasField("end"):
            self._texts.pop(message.sequence, None)
        elif message.sequence in self._texts:
            self._texts[message.sequence] += message.delta.text

    def _key_pressed(self, request: TypedRequest) -> None:
        text = self._texts.get(request.sequence)
        if text is not None and not is_typed_along(text, request):
            cancel = pb.SessionRequest(cancel=pb.Cancel(sequence=request.sequence))
            self.messages.put_nowait(cancel.SerializeToString())


async def _serve_streams(service: Service, keys: Sequence[Key]) -> None:
    """Serve the requests at their times, each session on a stream of its own, and wait for the last end."""
    loop, limits = asyncio.get_running_loop(), LimitSettings()
    intake = Intake(limits, Callers(AdmissionSettings(), limits), _NEVER_S, service.now, no_trace)
    times = StreamTimes(_NEVER_S, _NEVER_S, _NEVER_S, _STALL_S)
    calls = {key.typed.session: _EditorCall() for key in keys}
    async with asyncio.TaskGroup() as group:
        for call in calls.values():
            group.create_task(SessionCall(service, intake, times, call, _CALLER).run())  # type: ignore[arg-type]
        for key in keys:
            await asyncio.sleep(key.typed.intended_at_s - loop.time())
            calls[key.typed.session].send_nowait(key)
        await service.runner.wait_idle()
        for call in calls.values():
            call.messages.put_nowait(grpc.aio.EOF)


async def _generate(generations: Sequence[EngineCall]) -> None:
    """Start the generations at their times, and abort those that were aborted."""
    engine = ScriptedEngine.from_settings(ENGINE)
    await engine.start()
    loop = asyncio.get_running_loop()

    async def read(request: GenerationRequest) -> None:
        async with aclosing(engine.generate(request)) as outputs:
            async for _output in outputs:
                pass

    async with asyncio.TaskGroup() as group:
        for each in generations:
            await asyncio.sleep(each.began_at - loop.time())
            task = group.create_task(read(each.request))
            if not each.is_whole:
                loop.call_at(each.ended_at, task.cancel)
    await engine.stop()


@dataclass(slots=True)
class _RecordingEngine:
    """Records the generations of the engine behind it, each when it ends."""

    engine: Generates
    generations: list[EngineCall]

    def submit(self, request: GenerationRequest, sink: Sink) -> Work:
        """Generate with the engine behind this one."""
        recorded = _RecordedWork(self.generations, request, sink, asyncio.get_running_loop().time())
        recorded.work = self.engine.submit(request, recorded)
        return recorded


@dataclass(slots=True)
class _RecordedWork:
    """One generation, which is recorded when it ends."""

    generations: list[EngineCall]
    request: GenerationRequest
    sink: Sink
    began_at: float
    work: Work | None = None

    def push(self, output: Output) -> None:
        """Pass on an output."""
        if output.finish is not None:
            self._record(is_whole=True)
        self.sink.push(output)

    def fail(self, error: Exception) -> None:
        """Pass on an error."""
        self._record(is_whole=False)
        self.sink.fail(error)

    def abort(self) -> None:
        """Abort in the engine behind this one."""
        if self.work is not None:
            self.work.abort()
            self._record(is_whole=False)

    def _record(self, *, is_whole: bool) -> None:
        self.work = None
        ended_at = asyncio.get_running_loop().time()
        self.generations.append(EngineCall(self.request, self.began_at, ended_at, is_whole))


@dataclass(slots=True)
class _RecordingPrompts:
    """Records the ids of the requests whose prompts are built."""

    prompts: Prompts
    built: list[str] = field(default_factory=list)

    def expected_new_tokens(self, request: Request) -> int:
        """Return what the builder behind this one expects."""
        return self.prompts.expected_new_tokens(request)

    def build(self, request: Request) -> Prompt:
        """Build with the builder behind this one."""
        self.built.append(request.id)
        return self.prompts.build(request)
