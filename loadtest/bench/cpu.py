"""Measures the CPU time that the front end takes for a request, in process and with h2load.

In process: the service behind the server's session streams, on which messages come and go as bytes, with the scripted
engine, in virtual time, so that each pass does the same work in the same order. The event loop is asyncio's own.

With h2load, a client in C, beside a bare gRPC server. Every request is the same `Complete` call of a named user, on the
scripted engine with instant times. Nothing is superseded, joined or cached. Some requests are always open.

The best of all rounds counts, because other work on the machine can only add CPU time.
"""

import asyncio
import contextlib
import gc
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import click
import grpc
import psutil
from prometheus_client import CollectorRegistry
from rich.console import Console

from completion.v1 import completion_pb2 as pb
from completion_server.api.callers import Callers
from completion_server.api.rpc.intake import Intake
from completion_server.api.rpc.session import SessionCall, StreamTimes
from completion_server.core.request import Caller, Request
from completion_server.core.trace_context import no_trace
from completion_server.engine.scripted.engine import ScriptedEngine
from completion_server.engine.settings import EngineSettings
from completion_server.engine.supervisor import SupervisedEngine
from completion_server.ops.metrics import Metrics
from completion_server.requests.limits.settings import AdmissionSettings, LimitSettings
from completion_server.requests.rules import Prompts
from completion_server.requests.scheduling.settings import SchedulingSettings
from completion_server.requests.service import Service
from completion_server.requests.settings import ServingSettings
from completion_server.text.prompt.builder import Prompt, PromptBuilder
from loadtest import LoadTestError
from loadtest.bench.bare import bare_server
from loadtest.bench.runner.benchmark import COUNT, ServerOptions, benchmark, option
from loadtest.bench.runner.contest import editors
from loadtest.bench.runner.server import SCRIPTED, SERVES_ALL, ServerProcess, cpu_s, effective_config, prompt_builder
from loadtest.processes.meter import MetricsError, read_counter
from loadtest.simulation import virtual_time
from loadtest.simulation.virtual_time import LoopClock
from loadtest.targets.editor import is_typed_along
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.trace import make_trace
from loadtest.traffic.typed import Trace, TypedRequest

_OVERRIDES = (
    *SERVES_ALL,
    *SCRIPTED,
    "engine.scripted_times=instant",
    "engine.max_num_seqs=128",
    "scheduling.max_slots=128",
    "scheduling.supersede=false",
    "scheduling.typing_through=false",
    "scheduling.single_flight=false",
    "shed.lag_ms=0",
)
_TEXT = "    value = compute(item, 3)\n" * 200
_BODY = pb.CompleteRequest(
    session_id="h2load",
    sequence=1,
    document_uri="file:///h2load.py",
    language_id="python",
    prefix=_TEXT[:3000],
    suffix=_TEXT[:800],
    mode=pb.MODE_SINGLE_LINE,
    max_tokens=16,
    without_completion_cache=True,
).SerializeToString()
_METHOD = f"/{pb.DESCRIPTOR.services_by_name['CompletionService'].full_name}/Complete"
_CONNECTIONS, _OPEN_EACH = 8, 4
_DONE = re.compile(r"finished in [^,]*, ([\d.]+) req/s.*?(\d+) succeeded, (\d+) failed", re.DOTALL)
_LIMIT_S = 60.0
_IN_PROCESS_S, _H2LOAD_S = 10.0, 5.0
"""The most virtual seconds of a pass in process, and the most seconds of a turn with h2load."""


class H2loadError(LoadTestError):
    """h2load is not installed, or requests failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes(ServerOptions):
    """The options."""

    sessions: int = option(2000, "Editors, in process.", COUNT, quick=40)
    requests_per_s: float = option(600.0, "Asked by all editors together, in process.", click.FloatRange(1), quick=40.0)
    seconds: float = option(20.0, "Of traffic in each pass or turn, at most.", click.FloatRange(1), quick=2.0)
    rounds: int = option(3, "Passes, and turns of each server.", COUNT, quick=1)
    in_process_only: bool = option(False, "Leave h2load out: half a minute, for one change at a time.")
    h2load_only: bool = option(False, "Measure with h2load alone.")
    seed: int = option(0, "Who types what and when.", int)


@benchmark(Sizes)
def main(options: Sizes, console: Console) -> Mapping[str, Any]:
    """Measure the CPU time of a request. The last line is a JSON object.

    \b
    Example:
        python -m loadtest.bench.cpu --h2load-only --rounds 5
        python -m loadtest.bench.cpu --in-process-only
    """
    found: dict[str, Any] = {}
    if not options.in_process_only:
        if options.h2load_only or shutil.which("h2load"):
            found |= with_h2load(options)
        else:
            console.print("h2load is not installed (Debian: nghttp2-client); its figures are left out", style="yellow")
    if not options.h2load_only:
        effective = effective_config(options.config, (*options.overrides, "engine.kind=scripted"))
        scenario = editors(options.sessions, options.requests_per_s, min(_IN_PROCESS_S, options.seconds), options.seed)
        found |= in_process(make_trace(scenario), scenario, prompt_builder(effective), options.rounds)
    names = ("sessions", "requests_per_s", "seconds", "rounds", "seed")
    return found | {name: getattr(options, name) for name in names}


class _Turn(NamedTuple):
    """One turn of a server."""

    cpu_ms: float
    """CPU milliseconds of its process for a request."""
    requests_per_s: float
    num_requests: int


def with_h2load(options: Sizes) -> dict[str, float]:
    """Measure the server and a bare server in turns; return the figures.

    Raises H2loadError if h2load is not installed, or requests failed.
    """
    served, bare = list[_Turn](), list[_Turn]()
    with (
        tempfile.TemporaryDirectory(prefix="h2load-") as folder,
        ServerProcess(options.config, (*_OVERRIDES, *options.overrides), has_metrics=True) as server,
        bare_server(0) as (bare_address, bare_pid),
    ):
        body, seconds = Path(folder, "body"), min(_H2LOAD_S, options.seconds)
        body.write_bytes(b"\0" + len(_BODY).to_bytes(4, "big") + _BODY)  # as gRPC frames it
        metrics = f"http://{server.ready['metrics_address']}/metrics"
        for _ in range(options.rounds):
            before = _num_answered(metrics)
            served.append(_turn(body, server.ready["address"], server.pid, seconds))
            if _num_answered(metrics) - before < served[-1].num_requests:
                raise H2loadError("h2load: the server did not answer all requests with a completion")
            bare.append(_turn(body, bare_address, bare_pid, seconds))
    cpu_ms, bare_cpu_ms = (min(each.cpu_ms for each in turns) for turns in (served, bare))
    return {
        "h2load_cpu_ms": cpu_ms,
        "h2load_bare_cpu_ms": bare_cpu_ms,
        "h2load_ratio_to_bare": cpu_ms / bare_cpu_ms,
        "h2load_requests_per_s": max(each.requests_per_s for each in served),
        "h2load_bare_requests_per_s": max(each.requests_per_s for each in bare),
    }


def _turn(body: Path, address: str, pid: int, seconds: float) -> _Turn:
    program = shutil.which("h2load")
    if program is None:
        raise H2loadError("h2load is not installed; on Debian: apt-get install nghttp2-client")
    command = [
        program, "--duration", f"{seconds:g}", "--clients", str(_CONNECTIONS),
        "--max-concurrent-streams", str(_OPEN_EACH), "--data", str(body),
        "--header", "content-type: application/grpc", "--header", "te: trailers", "--header", "x-user-id: h2load",
        f"http://{address}{_METHOD}",
    ]  # fmt: skip
    process = psutil.Process(pid)
    begun_s = cpu_s(process)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + _LIMIT_S)
    used_s, found = cpu_s(process) - begun_s, _DONE.search(done.stdout)
    if found is None or int(found[3]) or not int(found[2]):
        raise H2loadError(f"h2load: requests to {address} failed:\n{done.stdout}{done.stderr}")
    return _Turn(used_s * 1000 / int(found[2]), float(found[1]), int(found[2]))


def _num_answered(metrics: str) -> float:
    found = 0.0
    for outcome in ("stop", "length"):
        with contextlib.suppress(MetricsError):  # no request had this outcome so far
            found += read_counter(metrics, ("completion_requests_total",), {"outcome": outcome})
    return found


_NUM_SLOTS = 128
_NEVER_S, _STALL_S = 1e6, 5.0
_PEER = "192.0.2.1"
_CALLER = Caller(connection=f"{_PEER}:50000", peer=_PEER)
_ENGINE = EngineSettings(
    kind="scripted",
    scripted_times="large_model_prefilled_apart",
    scripted_acceptance=0.82,
    draft_model="scripted",
    num_speculative_tokens=5,
    max_num_seqs=_NUM_SLOTS,
    warm_up=False,
)
_SETTINGS = ServingSettings(
    AdmissionSettings(users_per_peer=0), SchedulingSettings(max_slots=_NUM_SLOTS), delta_pause_s=0.020
)


def in_process(trace: Trace, scenario: Scenario, prompts: PromptBuilder, rounds: int) -> dict[str, float]:
    """Return the CPU milliseconds for a request of a trace, and of these those that building prompts takes.

    A first pass warms up. Garbage collections of what the benchmark itself holds do not count.
    """
    whole_ms, prompt_ms = [], []
    for number in range(rounds + 1):
        keys, timed = _keys(trace, scenario, f"pass-{number}"), _TimedPrompts(prompts)
        gc.collect()
        gc.disable()
        begun_s = time.process_time()
        virtual_time.run(_serve(keys, timed))
        whole_ms.append((time.process_time() - begun_s) * 1000 / max(1, len(keys)))
        prompt_ms.append(timed.cpu_s * 1000 / max(1, len(keys)))
        gc.enable()
    return {"front_end_cpu_ms": min(whole_ms[1:]), "prompt_cpu_ms": min(prompt_ms[1:])}


@dataclass(slots=True)
class _TimedPrompts:
    """Measures the CPU time of the builder behind it."""

    prompts: Prompts
    cpu_s: float = 0.0

    def expected_new_tokens(self, request: Request) -> int:
        """Return what the builder behind this one expects."""
        return self.prompts.expected_new_tokens(request)

    def build(self, request: Request) -> Prompt:
        """Build with the builder behind this one."""
        begun_s = time.process_time()
        prompt = self.prompts.build(request)
        self.cpu_s += time.process_time() - begun_s
        return prompt


Key = tuple[TypedRequest, bytes]
"""A request of the trace, and the message that an editor sends."""


def _keys(trace: Trace, scenario: Scenario, users: str) -> list[Key]:
    """Return the requests of the trace in the order of their times. The callers of each pass are new."""

    def message(request: TypedRequest, language_id: str) -> bytes:
        complete = pb.CompleteRequest(
            session_id=f"{users}/{request.session}",
            sequence=request.sequence,
            document_uri=f"file:///{request.session}",
            language_id=language_id,
            prefix=request.prefix,
            suffix=request.suffix,
            trigger=pb.Trigger.Value(f"TRIGGER_{request.trigger.name}"),
            mode=pb.Mode.Value(f"MODE_{scenario.editor.mode.upper()}"),
            max_tokens=scenario.editor.max_tokens,
        )
        return pb.SessionRequest(complete=complete).SerializeToString()

    keys = [(each, message(each, session.language_id)) for session in trace.sessions for each in session.requests]
    return sorted(keys, key=lambda key: key[0].intended_at_s)


class _EditorCall:
    """The context of a call: an editor's messages come in, the server's answers go out. All are bytes."""

    def __init__(self) -> None:
        self.messages = asyncio.Queue[object]()
        self._texts: dict[int, str] = {}
        """Text of the open requests, by sequence number."""

    def send_nowait(self, request: TypedRequest, message: bytes) -> None:
        """Have the server receive a request, and its cancellation at the user's next key."""
        self._texts[request.sequence] = ""
        self.messages.put_nowait(message)
        asyncio.get_running_loop().call_at(request.next_key_at_s, self._key_pressed, request)

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


@contextlib.asynccontextmanager
async def _serving(prompts: Prompts) -> AsyncIterator[Service]:
    clock = LoopClock()
    engine = SupervisedEngine(lambda: ScriptedEngine.from_settings(_ENGINE), _ENGINE, clock)
    service = Service(_SETTINGS, engine, prompts, clock, Metrics(CollectorRegistry()).handle)
    service.gate.set_engine_ready(True)
    await engine.start()
    tasks = [asyncio.create_task(service.runner.run()), asyncio.create_task(engine.run())]
    await asyncio.sleep(0)
    yield service
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await engine.stop()


async def _serve(keys: Sequence[Key], prompts: Prompts) -> None:
    """Serve the requests at their times, each session on a stream of its own, and wait for the last end."""
    loop, limits = asyncio.get_running_loop(), LimitSettings()
    times = StreamTimes(_NEVER_S, _NEVER_S, _NEVER_S, _STALL_S)
    calls = {request.session: _EditorCall() for request, _ in keys}
    async with _serving(prompts) as service, asyncio.TaskGroup() as group:
        intake = Intake(limits, Callers(AdmissionSettings(), limits), _NEVER_S, service.now, no_trace)
        for call in calls.values():
            group.create_task(SessionCall(service, intake, times, call, _CALLER).run())  # type: ignore[arg-type]
        for request, message in keys:
            await asyncio.sleep(request.intended_at_s - loop.time())
            calls[request.session].send_nowait(request, message)
        await service.runner.wait_idle()
        for call in calls.values():
            call.messages.put_nowait(grpc.aio.EOF)


if __name__ == "__main__":
    main()
