"""Runs a workload: joins simulated editors, the server's pipeline and scheduler, and an engine that only takes time.

Every request takes the path of a real one, from admission to streaming, in an event loop with virtual time. The wire,
the prompt, the adaptive number of slots and typing through are left out.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from completion_server.admission.gate import AdmissionSettings, Gate
from completion_server.admission.quotas import Quotas
from completion_server.core.clock import Deadline
from completion_server.core.errors import Code
from completion_server.core.events import Feedback, Marks
from completion_server.core.outcome import End
from completion_server.core.request import Caller, Request
from completion_server.engine.interface import Engine
from completion_server.engine.scripted.engine import ScriptedEngine
from completion_server.engine.settings import EngineSettings
from completion_server.engine.supervisor import SupervisedEngine
from completion_server.pipeline import Pipeline
from completion_server.prompt.builder import Prompt
from completion_server.scheduling.book import Book, Shedding
from completion_server.scheduling.order import ORDERS
from completion_server.scheduling.runner import Runner
from completion_server.scheduling.settings import SchedulingSettings
from loadtest.simulation import virtual_time
from loadtest.simulation.editors import SimulatedRequest
from loadtest.simulation.engine import SlotEngine
from loadtest.simulation.virtual_time import LoopClock
from loadtest.simulation.workload import NUM_TOKENS, TIMES, Policy, SimulatedResult, Workload

_LAST_STEP_S = 1.0
"""More than any step; an aborted generation leaves the engine at the end of its step."""


class LeftoverError(Exception):
    """Requests or work were left when every request should have ended: a bug in the server."""


def simulate(workload: Workload, policy: Policy, requests: Sequence[SimulatedRequest]) -> list[SimulatedResult]:
    """Serve `requests` and return their results in the order in which they ended.

    Raises:
        LeftoverError: a request has not ended, has ended twice, or still runs in the engine.

    """
    return virtual_time.run(_simulate(workload, policy, requests))


async def _simulate(workload: Workload, policy: Policy, requests: Sequence[SimulatedRequest]) -> list[SimulatedResult]:
    observer = _Observer()
    async with _serving(workload, policy, observer) as pipeline:
        clock, loop = pipeline.clock, asyncio.get_running_loop()
        for number, typed in enumerate(requests):
            await asyncio.sleep(typed.at - clock.now())
            deadline = Deadline.after(workload.deadline_s_of(typed), clock.now())
            request = _request(number, typed, deadline, clock.now())
            observer.open[request.id] = typed
            completion = pipeline.open(request)
            if workload.hangs_up:
                loop.call_at(typed.next_key_at, completion.close)
        await pipeline.runner.wait_idle()
        await asyncio.sleep(_LAST_STEP_S)
        _check_nothing_left(pipeline, observer)
    return observer.results


@contextlib.asynccontextmanager
async def _serving(workload: Workload, policy: Policy, observer: "_Observer") -> AsyncIterator[Pipeline]:
    """Start the pipeline, the scheduler and an engine, joined as `completion_server.app` joins them."""
    clock = LoopClock()
    gate = Gate(AdmissionSettings())
    gate.set_engine_ready(True)
    engine = SupervisedEngine(_engine_maker(workload), EngineSettings(warm_up=False, heartbeat_s=0), clock)
    settings = SchedulingSettings(supersede=policy.supersede, typing_through=False)
    order, shedding = ORDERS[policy.order], Shedding(policy.shed)
    runner = Runner(Book(workload.num_slots, settings.max_queued, order=order, shedding=shedding), clock)
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
        budget_s=workload.budget_s,
    )
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await engine.stop()


def _engine_maker(workload: Workload) -> Callable[[], Engine]:
    if workload.engine == "slots":
        return lambda: SlotEngine(TIMES, workload.prefill_sigma, workload.seed)
    return lambda: ScriptedEngine(lambda _job: ["x"] * NUM_TOKENS, TIMES, max_num_seqs=workload.num_slots)


def _request(number: int, typed: SimulatedRequest, deadline: Deadline, now: float) -> Request:
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
        """Return the same prompt for each request; the service times don't depend on it."""
        return Prompt([1], (), 1, 1)

    def expected_new_tokens(self, _request: Request) -> int:
        """Return the same number for each request."""
        return 1


class _Observer:
    """Records the result of each request."""

    def __init__(self) -> None:
        self.open: dict[str, SimulatedRequest] = {}
        self.num_surplus_ends = 0
        self.results: list[SimulatedResult] = []

    def request_ended(self, request: Request, end: End, marks: Marks) -> None:
        typed = self.open.pop(request.id, None)
        if typed is None or marks.ended is None:
            self.num_surplus_ends += 1  # an observer must not raise
            return
        self.results.append(SimulatedResult(typed, end.outcome.reason, marks.started, marks.first_output, marks.ended))

    def request_refused(self, code: Code) -> None:
        """Ignore it: no request is refused."""

    def request_streamed(self, seconds: float) -> None:
        """Ignore it: no editor reads the stream."""

    def generation_taken_over(self, num_tokens: int) -> None:
        """Ignore it: typing through is off."""

    def generation_left(self, num_tokens: int) -> None:
        """Ignore it: typing through is off."""

    def feedback_reported(self, feedback: Feedback) -> None:
        """Ignore it: no editor sends feedback."""

    def feedback_refused(self) -> None:
        """Ignore it: no editor sends feedback."""
