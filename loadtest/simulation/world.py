"""One run: typists, the server's own rooms from the pipeline down, and an engine that only takes time.

Everything from admission to streaming is what serves real requests, in a loop whose time is virtual. Left out are the
wire, the prompt, the limiter (the number of slots is fixed), and typing through: nobody here types what is generated.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from completion_server.admission.gate import AdmissionSettings, Gate
from completion_server.admission.quotas import Quotas
from completion_server.core.clock import Deadline
from completion_server.core.errors import Code
from completion_server.core.events import Feedback, Marks
from completion_server.core.outcome import End, FinishReason
from completion_server.core.request import Caller, Request
from completion_server.engine.interface import Engine
from completion_server.engine.scripted.engine import LARGE_MODEL_ON_A_GPU, ScriptedEngine
from completion_server.engine.settings import EngineSettings
from completion_server.engine.supervisor import SupervisedEngine
from completion_server.pipeline import Pipeline
from completion_server.prompt.builder import Prompt
from completion_server.scheduling.book import Book, Shedding
from completion_server.scheduling.order import ORDERS
from completion_server.scheduling.runner import Runner
from completion_server.scheduling.settings import SchedulingSettings
from loadtest.simulation import virtual_time
from loadtest.simulation.engine import SlotEngine
from loadtest.simulation.typists import TypedRequest, Typing, requests_of_all
from loadtest.simulation.virtual_time import LoopClock

NUM_TOKENS = 21
"""Of every answer: the first, and 20 more."""

TIMES = LARGE_MODEL_ON_A_GPU
FIRST_TEXT_S = TIMES.step_s(1, 0, 0)
"""What a request that is alone takes to its first text,"""
SERVICE_S = FIRST_TEXT_S + (NUM_TOKENS - 1) * TIMES.step_s(0, 1, 0)
"""and in all."""

_LEAD_S = 2.0
"""Simulated before the first request that counts, so that there is a queue already,"""
_TRAIL_S = 1.0
"""and after the last one, so that it has company, too."""
_LAST_STEP_S = 1.0
"""More than any step, at whose end an aborted generation leaves the engine."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What is compared."""

    order: str = "earliest_deadline"
    shed: str = "late"
    supersede: bool = True
    user_requests_per_s: float = 0.0
    """What one user may ask for long; 0 sets no limit."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What the policies are compared on."""

    load: float = 1.0
    """Requests offered, relative to what the slots could serve whole."""
    num_slots: int = 8
    num_sessions: int | None = None
    """Open sessions, whose users type as much of the time as makes the load; None has as many as never rest."""
    seconds: float = 30.0
    budget_s: float = 0.250
    """For the first text: what comes later was in vain."""
    hurried_s: float | None = None
    """The budget of every second user, whose calls have a deadline then."""
    look_s: float = 0.200
    """A completion that stands for less than this before the user's next key is not seen."""
    engine: Literal["slots", "steps"] = "slots"
    """What "steps" computes in one step delays all of its batch, as in a real engine."""
    prefill_sigma: float = 0.0
    """How much prefills vary, with "slots"."""
    hangs_up: bool = False
    """Whether editors cancel at the next key. If not, the server learns it from the next request, a debounce later."""
    seed: int = 1
    typing: Typing = field(default_factory=Typing)

    @property
    def capacity_per_s(self) -> float:
        """Requests that the slots can serve whole."""
        return self.num_slots / SERVICE_S

    def budget_s_of(self, request: TypedRequest) -> float:
        """Return how late its first text may come."""
        deadline_s = self.deadline_s_of(request)
        return self.budget_s if deadline_s is None else min(self.budget_s, deadline_s)

    def deadline_s_of(self, request: TypedRequest) -> float | None:
        """Return after how long the editor does not want it any more."""
        return self.hurried_s if request.user % 2 else None

    def counts(self, request: TypedRequest) -> bool:
        """Return whether a request is one of those that figures are made of."""
        return _LEAD_S <= request.at < _LEAD_S + self.seconds

    def requests(self) -> list[TypedRequest]:
        """Return what users ask, the same for every policy.

        Raises:
            ValueError: so few sessions can't ask so much.

        """
        offered_per_s = self.load * self.capacity_per_s
        typing = self.typing
        num_users = self.num_sessions
        if num_users is None:
            num_users = max(1, round(offered_per_s / typing.requests_per_s))
        else:
            typing = typing.resting(offered_per_s / num_users)
        return requests_of_all(num_users, typing, _LEAD_S + self.seconds + _TRAIL_S, self.seed)


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a request. Times are in seconds from the run's start."""

    request: TypedRequest
    reason: FinishReason
    started_at: float | None
    first_text_at: float | None
    ended_at: float

    @property
    def ttft_s(self) -> float | None:
        """From the request to its first text."""
        return None if self.first_text_at is None else self.first_text_at - self.request.at

    @property
    def slot_s(self) -> float:
        """How long it had a slot."""
        return 0.0 if self.started_at is None else self.ended_at - self.started_at


class LeftoverError(Exception):
    """Something was left behind when every request should have ended: a bug in the server."""


def simulate(scenario: Scenario, policy: Policy, requests: Sequence[TypedRequest]) -> list[Result]:
    """Let `requests` be served, and return what became of each, in the order in which they ended.

    Raises:
        LeftoverError: a request has not ended, or ended twice, or work of it goes on.

    """
    return virtual_time.run(_simulate(scenario, policy, requests))


async def _simulate(scenario: Scenario, policy: Policy, requests: Sequence[TypedRequest]) -> list[Result]:
    observer = _Observer()
    async with _serving(scenario, policy, observer) as pipeline:
        clock, loop = pipeline.clock, asyncio.get_running_loop()
        for number, typed in enumerate(requests):
            await asyncio.sleep(typed.at - clock.now())
            deadline = Deadline.after(scenario.deadline_s_of(typed), clock.now())
            request = _request(number, typed, deadline, clock.now())
            observer.open[request.id] = typed
            completion = pipeline.open(request)
            if scenario.hangs_up:
                loop.call_at(typed.next_key_at, completion.close)
        await pipeline.runner.wait_idle()
        await asyncio.sleep(_LAST_STEP_S)
        _check_nothing_left(pipeline, observer)
    return observer.results


@contextlib.asynccontextmanager
async def _serving(scenario: Scenario, policy: Policy, observer: "_Observer") -> AsyncIterator[Pipeline]:
    """Join the rooms as `app` does."""
    clock = LoopClock()
    gate = Gate(AdmissionSettings())
    gate.set_engine_ready(True)
    engine = SupervisedEngine(_engine_maker(scenario), EngineSettings(warm_up=False, heartbeat_s=0), clock)
    settings = SchedulingSettings(supersede=policy.supersede, typing_through=False)
    order, shedding = ORDERS[policy.order], Shedding(policy.shed)
    runner = Runner(Book(scenario.num_slots, settings.max_queued, order=order, shedding=shedding), clock)
    await engine.start()
    tasks = [asyncio.create_task(runner.run()), asyncio.create_task(engine.run())]
    await asyncio.sleep(0)
    yield Pipeline(
        gate=gate,
        quotas=Quotas(AdmissionSettings(user_requests_per_s=policy.user_requests_per_s, user_tokens_per_s=0)),
        runner=runner,
        prompts=_Prompts(),
        engine=engine,
        clock=clock,
        observer=observer,
        scheduling=settings,
        budget_s=scenario.budget_s,
    )
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await engine.stop()


def _engine_maker(scenario: Scenario) -> Callable[[], Engine]:
    if scenario.engine == "slots":
        return lambda: SlotEngine(TIMES, scenario.prefill_sigma, scenario.seed)
    return lambda: ScriptedEngine(lambda _job: ["x"] * NUM_TOKENS, TIMES, max_num_seqs=scenario.num_slots)


def _request(number: int, typed: TypedRequest, deadline: Deadline, now: float) -> Request:
    name = str(typed.user)
    return Request(str(number), Caller(name, name), number, "", "", "", "", NUM_TOKENS, now, deadline=deadline)


def _check_nothing_left(pipeline: Pipeline, observer: "_Observer") -> None:
    book = pipeline.runner.book
    left = {
        "requests without an end": len(observer.open),
        "ends too many": observer.num_surplus_ends,
        "requests in the book": book.num_live + book.num_queued,
        "slots": book.num_occupied,
        "generations in the engine": pipeline.engine.stats().num_running,
    }
    if any(left.values()):
        raise LeftoverError(", ".join(f"{num} {name}" for name, num in left.items() if num))


class _Prompts:
    def build(self, _request: Request) -> Prompt:
        """Return the same for everybody: the service times don't depend on it."""
        return Prompt([1], (), 1, 1)

    def expected_new_tokens(self, _request: Request) -> int:
        """Return the same for everybody."""
        return 1


class _Observer:
    """Keeps what became of each request."""

    def __init__(self) -> None:
        self.open: dict[str, TypedRequest] = {}
        self.num_surplus_ends = 0
        self.results: list[Result] = []

    def request_ended(self, request: Request, end: End, marks: Marks) -> None:
        typed = self.open.pop(request.id, None)
        if typed is None or marks.ended is None:
            self.num_surplus_ends += 1  # an observer must not raise
            return
        self.results.append(Result(typed, end.outcome.reason, marks.started, marks.first_output, marks.ended))

    def request_refused(self, code: Code) -> None:
        """Nothing is refused here."""

    def request_streamed(self, seconds: float) -> None:
        """Nobody reads."""

    def generation_taken_over(self, num_tokens: int) -> None:
        """Nobody types through."""

    def generation_left(self, num_tokens: int) -> None:
        """Nobody types through."""

    def feedback_reported(self, feedback: Feedback) -> None:
        """Nobody reports."""

    def feedback_refused(self) -> None:
        """Nobody reports."""
