"""A pipeline with the real rooms in front of an engine of the test's; prompts are the same three tokens for all."""

import asyncio
import dataclasses
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from completion_server.admission.gate import AdmissionSettings, Gate
from completion_server.admission.quotas import Quotas
from completion_server.admission.loop_lag import LoopLagMonitor
from completion_server.completion import Completion
from completion_server.core.clock import Clock
from completion_server.core.errors import Code
from completion_server.core.events import Feedback, Marks
from completion_server.core.outcome import Delta, End, FinishReason
from completion_server.core.request import Caller, Mode, Request
from completion_server.engine.interface import Engine
from completion_server.engine.settings import EngineSettings
from completion_server.engine.supervisor import SupervisedEngine
from completion_server.pipeline import Pipeline
from completion_server.prompt.builder import Prompt
from completion_server.scheduling.book import Book, Shedding
from completion_server.scheduling.runner import Runner
from completion_server.scheduling.settings import SchedulingSettings
from loadtest.simulation import virtual_time
from loadtest.simulation.virtual_time import LoopClock

UNLIMITED = AdmissionSettings(user_requests_per_s=0, user_tokens_per_s=0)
REQUEST = Request("r", Caller("u", "s"), 0, "", "", "x = ", "", 8, 0.0, mode=Mode.MULTI_LINE)


@dataclass
class Prompts:
    """Builds prompts, and remembers for whom and where."""

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
class Watcher:
    """An observer that keeps what it is told."""

    ends: dict[str, End] = field(default_factory=dict)
    marks: dict[str, Marks] = field(default_factory=dict)
    taken_over: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    refused: list[Code] = field(default_factory=list)

    @property
    def ended(self) -> list[tuple[str, FinishReason]]:
        return [(request_id, end.outcome.reason) for request_id, end in self.ends.items()]

    def request_ended(self, request: Request, end: End, marks: Marks) -> None:
        assert request.id not in self.ends, "a request ended twice"
        assert marks.ended is not None
        self.ends[request.id] = end
        self.marks[request.id] = marks

    def request_refused(self, code: Code) -> None:
        self.refused.append(code)

    def request_streamed(self, seconds: float) -> None:
        assert seconds >= 0

    def generation_taken_over(self, num_tokens: int) -> None:
        self.taken_over.append(num_tokens)

    def generation_left(self, num_tokens: int) -> None:
        self.left.append(num_tokens)

    def feedback_reported(self, feedback: Feedback) -> None:
        raise AssertionError

    def feedback_refused(self) -> None:
        raise AssertionError


@dataclass
class House:
    """A pipeline, and what watches it."""

    pipeline: Pipeline
    watcher: Watcher
    prompts: Prompts
    engine: Engine
    sequences: Iterator[int] = field(default_factory=itertools.count)

    def open(self, request_id: str, prefix: str, **fields: Any) -> Completion:
        """Ask. Each request of the one session is newer than those before it."""
        fields = {"received_at": self.pipeline.clock.now(), "sequence": next(self.sequences)} | fields
        return self.pipeline.open(dataclasses.replace(REQUEST, id=request_id, prefix=prefix, **fields))

    @property
    def load(self) -> tuple[int, int, int]:
        """Live requests, taken slots and waiting requests."""
        book = self.pipeline.runner.book
        return book.num_live, book.num_occupied, book.num_queued


@asynccontextmanager
async def house(
    make_engine: Callable[[], Engine],
    clock: Clock,
    *,
    prompts: Prompts | None = None,
    scheduling: SchedulingSettings | None = None,
    quotas: AdmissionSettings = UNLIMITED,
    book: Book | None = None,
    loop_lag: LoopLagMonitor | None = None,
) -> AsyncIterator[House]:
    """Run a pipeline, by default with four slots and without haste, and check that nothing is left in it."""
    gate, watcher, prompts = Gate(AdmissionSettings()), Watcher(), prompts or Prompts()
    engine = SupervisedEngine(make_engine, EngineSettings(warm_up=False), clock)
    runner = Runner(book or Book(4, 4, shedding=Shedding.NEVER), clock)
    await engine.start()
    tasks = [asyncio.create_task(runner.run()), asyncio.create_task(engine.run())]
    await asyncio.sleep(0)
    gate.set_engine_ready(True)
    pipeline = Pipeline(
        gate=gate,
        quotas=Quotas(quotas),
        runner=runner,
        prompts=prompts,
        engine=engine,
        clock=clock,
        observer=watcher,
        scheduling=scheduling or SchedulingSettings(),
        budget_s=10,
        loop_lag=loop_lag,
    )
    opened = House(pipeline, watcher, prompts, engine.current)
    yield opened
    await runner.wait_idle()
    assert opened.load == (0, 0, 0)
    assert not {*runner._tasks, *runner._owners, *runner._works, *runner._aborted_at}
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await engine.stop()


@dataclass
class Answer:
    """All that came back for a request."""

    text: str
    end: End

    @property
    def reason(self) -> FinishReason:
        return self.end.outcome.reason


async def read(completion: Completion) -> Answer:
    """Read an answer to its end."""
    text = ""
    end: End | None = None
    async for event in completion.events():
        assert end is None, "an event came after the end"
        if isinstance(event, Delta):
            text += event.text
        else:
            text += event.text
            end = event
    assert end is not None
    return Answer(text, end)


def in_virtual_time(
    scenario: Callable[[House], Coroutine[Any, Any, None]], make_engine: Callable[[], Engine], **options: Any
) -> None:
    """Run a scenario in a house whose time is virtual."""

    async def main() -> None:
        async with house(make_engine, LoopClock(), **options) as opened:
            await scenario(opened)

    virtual_time.run(main())
