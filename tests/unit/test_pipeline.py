"""The pipeline, with a prompt builder that remembers where it was called."""

import asyncio
import dataclasses
import itertools
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from completion_server.admission.gate import AdmissionSettings, Gate
from completion_server.core.clock import MonotonicClock
from completion_server.core.errors import Code
from completion_server.core.events import Feedback, Marks
from completion_server.core.outcome import Delta, End, FinishReason
from completion_server.core.request import Caller, Mode, Request
from completion_server.engine.interface import Engine
from completion_server.engine.scripted import ScriptedEngine, ServiceTimes
from completion_server.engine.settings import EngineSettings
from completion_server.engine.supervisor import SupervisedEngine
from completion_server.pipeline import Pipeline
from completion_server.prompt.builder import Prompt
from completion_server.scheduling.book import Book
from completion_server.scheduling.runner import Runner

CLOCK = MonotonicClock()


class Prompts:
    def __init__(self) -> None:
        self.threads: list[int] = []

    def build(self, request: Request) -> Prompt:
        self.threads.append(threading.get_ident())
        return Prompt([1, 2, 3], (), 3)


class Ends:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, FinishReason]] = []

    def request_ended(self, request: Request, end: End, marks: Marks) -> None:
        assert marks.ended is not None
        self.ended.append((request.id, end.outcome.reason))

    def request_refused(self, code: Code) -> None:
        raise AssertionError

    def request_streamed(self, seconds: float) -> None:
        assert seconds >= 0

    def feedback_reported(self, feedback: Feedback) -> None:
        raise AssertionError

    def feedback_refused(self) -> None:
        raise AssertionError


def quick_engine() -> Engine:
    return ScriptedEngine(lambda _job: ("a", "b", "c"))


def slow_engine() -> Engine:
    """Return an engine that says something every millisecond, and does not come to an end."""
    return ScriptedEngine(lambda _job: itertools.repeat("a"), ServiceTimes(decode_base_s=1e-3))


@asynccontextmanager
async def running(
    prompts: Prompts, ends: Ends, make_engine: Callable[[], Engine] = quick_engine
) -> AsyncIterator[Pipeline]:
    gate = Gate(AdmissionSettings())
    engine = SupervisedEngine(make_engine, EngineSettings(), CLOCK)
    runner = Runner(Book(4, 4), CLOCK)
    await engine.start()
    tasks = [asyncio.create_task(runner.run()), asyncio.create_task(engine.run())]
    await asyncio.sleep(0)
    gate.set_engine_ready(True)
    yield Pipeline(gate=gate, runner=runner, prompts=prompts, engine=engine, clock=CLOCK, observer=ends)
    await runner.wait_idle()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await engine.stop()


def request(request_id: str, prefix: str, sequence: int = 0) -> Request:
    return Request(request_id, Caller("u", "s"), sequence, "", "", prefix, "", 8, CLOCK.now(), mode=Mode.MULTI_LINE)


async def answer(pipeline: Pipeline, asked: Request) -> tuple[str, FinishReason]:
    text, reason = "", None
    async for event in pipeline.open(asked).events():
        assert reason is None
        if isinstance(event, Delta):
            text += event.text
        else:
            reason = event.outcome.reason
    assert reason is not None
    return text, reason


async def test_a_short_prompt_is_built_where_it_is_and_a_long_one_elsewhere() -> None:
    prompts, ends = Prompts(), Ends()
    async with running(prompts, ends) as pipeline:
        assert await answer(pipeline, request("short", "x = ")) == ("abc", FinishReason.STOP)
        assert await answer(pipeline, request("long", "x" * 100_000, 1)) == ("abc", FinishReason.STOP)
    here = threading.get_ident()
    assert prompts.threads[0] == here
    assert prompts.threads[1] != here
    assert ends.ended == [("short", FinishReason.STOP), ("long", FinishReason.STOP)]


async def test_a_superseded_answer_has_no_text_left() -> None:
    ends = Ends()
    async with running(Prompts(), ends, slow_engine) as pipeline:
        older = pipeline.open(dataclasses.replace(request("old", "x", 1), max_tokens=4096))
        reader = older.events()
        assert isinstance(await anext(reader), Delta)
        await asyncio.sleep(0.05)  # it has gone on, and nobody has read it
        newer = pipeline.open(request("new", "x", 2))
        assert [type(event) async for event in newer.events()][-1] is End
        left = [event async for event in reader]
        assert [type(event) for event in left] == [End]
    assert ends.ended == [("old", FinishReason.SUPERSEDED), ("new", FinishReason.LENGTH)]


async def test_closing_an_answer_ends_its_request_once() -> None:
    ends = Ends()
    async with running(Prompts(), ends) as pipeline:
        completion = pipeline.open(request("r", "x" * 100_000))
        completion.close()
        completion.close()
        assert [type(event) async for event in completion.events()] == [End]
    assert ends.ended == [("r", FinishReason.CANCELLED)]
