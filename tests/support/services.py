"""A real service with an engine of the test; the prompt of every request is the same three tokens."""

import asyncio
import dataclasses
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from completion_server.core import events
from completion_server.core.clock import Clock
from completion_server.core.errors import Code
from completion_server.core.events import Marks
from completion_server.core.outcome import AnswerPart, Delta, End, FinishReason
from completion_server.core.request import Caller, Mode, Request
from completion_server.engine.interface import Engine, GenerationRequest
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from completion_server.engine.settings import CacheScope, EngineSettings
from completion_server.engine.supervisor import SupervisedEngine
from completion_server.requests.completion import Completion
from completion_server.requests.isolation import Isolation
from completion_server.requests.limits.settings import AdmissionSettings
from completion_server.requests.loop_lag import LoopLagMonitor
from completion_server.requests.rules import EditPrompts, EditRules
from completion_server.requests.scheduling.settings import SchedulingSettings, ShedSettings
from completion_server.requests.service import CompletionCache, ReplicaGroup, Service, ServiceParts
from completion_server.requests.settings import ServingSettings
from completion_server.text.prompt.builder import Prompt
from loadtest.simulation import virtual_time
from loadtest.simulation.virtual_time import LoopClock
from tests.support.cancels import cancel_and_wait

UNLIMITED = AdmissionSettings(user_requests_per_s=0, user_tokens_per_s=0)
FOUR_SLOTS = SchedulingSettings(max_slots=4, max_queued=4, step_tolerance=0)
NO_SHEDDING = ShedSettings(budget_ms=10_000, when="never", lag_ms=0)
REQUEST = Request("r", Caller("u", "s"), 0, "", "", "x = ", "", 8, 0.0, mode=Mode.MULTI_LINE)
TIMES = ServiceTimes(prefill_base_s=0.02, decode_base_s=0.01)
"""The first token comes 20 ms after the start, the others 10 ms apart."""
WORDS = ("alp", "ha", " be", "ta")
ENDS_WITHIN_S = 100_000.0
"""How long the requests of a scenario may last, in its time: the deadlines of some are far away."""


class Script:
    """The text that the engine generates for each request, by its id; records the ids that it generated for."""

    def __init__(self, **words: Sequence[str]) -> None:
        self.words = words
        self.asked: list[str] = []

    def __call__(self, job: GenerationRequest) -> Sequence[str]:
        self.asked.append(job.id)
        return self.words[job.id]

    def engine(self) -> ScriptedEngine:
        return ScriptedEngine(self, TIMES)


@dataclass
class Prompts:
    """Builds prompts; records the request ids and the threads."""

    threads: list[int] = field(default_factory=list)
    built: list[str] = field(default_factory=list)
    gate: threading.Event | None = None
    """Building waits for it."""

    def build(self, request: Request) -> Prompt:
        self.threads.append(threading.get_ident())
        if self.gate is not None:
            self.gate.wait(10)
        self.built.append(request.id)
        return Prompt([1, 2, 3], (), 3, 3)

    def expected_new_tokens(self, _request: Request) -> int:
        return 3


@dataclass
class RecordedEdits(Prompts):
    """Prompts of next edits that find nothing to change; records the requests whose region was looked for."""

    asked: list[str] = field(default_factory=list)
    rules: EditRules | None = None

    def answer(self, request: Request) -> EditRules | None:
        self.asked.append(request.id)
        return self.rules


@dataclass
class EventRecorder:
    """Records the events of a service."""

    ends: dict[str, End] = field(default_factory=dict)
    marks: dict[str, Marks] = field(default_factory=dict)
    reattached: list[int] = field(default_factory=list)
    diverged: list[int] = field(default_factory=list)
    refused: list[Code] = field(default_factory=list)
    recorded: list[events.Event] = field(default_factory=list)

    @property
    def ended(self) -> list[tuple[str, FinishReason]]:
        return [(request_id, end.outcome.reason) for request_id, end in self.ends.items()]

    def handle(self, event: events.Event) -> None:
        self.recorded.append(event)
        match event:
            case events.RequestEnded(request, end, marks):
                assert request.id not in self.ends, "a request ended twice"
                assert marks.ended is not None
                self.ends[request.id] = end
                self.marks[request.id] = marks
            case events.RequestRefused(error):
                self.refused.append(error.code)
            case events.GenerationReattached(num_tokens):
                self.reattached.append(num_tokens)
            case events.GenerationDiverged(num_tokens):
                self.diverged.append(num_tokens)


@dataclass
class RunningService:
    """A running service, its engine, and a recorder of its events."""

    service: Service
    recorder: EventRecorder
    prompts: Prompts
    engine: Engine
    sequences: Iterator[int] = field(default_factory=itertools.count)

    def open(self, request_id: str, prefix: str, **fields: Any) -> Completion:
        """Open a request. Each request of the session is newer than those before it."""
        fields = {"received_at": self.service.now(), "sequence": next(self.sequences)} | fields
        return self.service.open(dataclasses.replace(REQUEST, id=request_id, prefix=prefix, **fields))

    @property
    def load(self) -> tuple[int, int, int]:
        """Live requests, taken slots and waiting requests."""
        load = self.service.load()
        return load.num_live, load.num_occupied, load.num_queued


@asynccontextmanager
async def running_service(
    make_engine: Callable[[], Engine],
    clock: Clock,
    *,
    prompts: Prompts | None = None,
    scheduling: SchedulingSettings = FOUR_SLOTS,
    admission: AdmissionSettings = UNLIMITED,
    shed: ShedSettings = NO_SHEDDING,
    loop_lag: LoopLagMonitor | None = None,
    cache: CompletionCache | None = None,
    edits: EditPrompts | None = None,
    recorder: EventRecorder | None = None,
    cache_scope: CacheScope = "user",
    replicas: ReplicaGroup | None = None,
) -> AsyncIterator[RunningService]:
    """Run a service, by default with four slots and without shedding, and check that it is empty at the end."""
    recorder, prompts = recorder or EventRecorder(), prompts or Prompts()
    engine = SupervisedEngine(make_engine, EngineSettings(warm_up=False), clock)
    settings, isolation = ServingSettings(admission, scheduling, shed), Isolation(bytes(32), cache_scope)
    service = Service(
        settings,
        engine,
        prompts,
        clock,
        recorder.handle,
        ServiceParts(isolation=isolation, loop_lag=loop_lag, edits=edits, cache=cache, replicas=replicas),
    )
    await engine.start()
    tasks = [asyncio.create_task(service.runner.run()), asyncio.create_task(engine.run())]
    await asyncio.sleep(0)
    service.gate.set_engine_ready(True)
    running = RunningService(service, recorder, prompts, engine.current)
    yield running
    await asyncio.wait_for(service.runner.wait_idle(), ENDS_WITHIN_S)
    assert running.load == (0, 0, 0)
    for task in tasks:
        await cancel_and_wait(task)
    await engine.stop()


@dataclass
class Answer:
    """The answer to a request."""

    text: str
    end: End

    @property
    def reason(self) -> FinishReason:
        return self.end.outcome.reason


async def parts(completion: Completion) -> AsyncIterator[AnswerPart]:
    """Yield deltas as they come, then the end."""
    ready = asyncio.Event()
    completion.listen(ready.set)
    while True:
        await ready.wait()
        ready.clear()
        part = completion.take_nowait()
        if part is not None:
            yield part
        if isinstance(part, End):
            completion.note_end_written()
            return


async def read(completion: Completion) -> Answer:
    """Read an answer to its end."""
    text = ""
    end: End | None = None
    async for part in parts(completion):
        assert end is None, "something came after the end"
        if isinstance(part, Delta):
            text += part.text
        else:
            text += part.text
            end = part
    assert end is not None
    return Answer(text, end)


def in_virtual_time(
    scenario: Callable[[RunningService], Coroutine[Any, Any, None]], make_engine: Callable[[], Engine], **options: Any
) -> None:
    """Run a scenario on a service in virtual time."""

    async def main() -> None:
        async with running_service(make_engine, LoopClock(), **options) as running:
            await scenario(running)

    virtual_time.run(main())
