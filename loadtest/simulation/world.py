"""Runs a workload: joins simulated editors, the server's service and scheduler, and an engine that only takes time.

Every request takes the path of a real one, from admission to streaming, in an event loop with virtual time. The wire,
the text of prompts and typing through are left out. The number of slots is fixed.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import ClassVar, cast

from completion_server.core.clock import Deadline
from completion_server.core.events import Event, RequestEnded
from completion_server.core.request import Caller, Request
from completion_server.engine.interface import Engine
from completion_server.engine.scripted.engine import ScriptedEngine
from completion_server.engine.settings import EngineSettings
from completion_server.engine.supervisor import SupervisedEngine
from completion_server.requests.limits.settings import AdmissionSettings
from completion_server.requests.scheduling.settings import OrderName, SchedulingSettings, ShedSettings, ShedWhen
from completion_server.requests.service import Service
from completion_server.requests.settings import ServingSettings
from completion_server.text.prompt.builder import Prompt
from loadtest.simulation import virtual_time
from loadtest.simulation.engine import NUM_TOKENS, SIMULATED_TOKENS, TIMES, SlotEngine
from loadtest.simulation.virtual_time import LoopClock
from loadtest.simulation.workload import Policy, SimulatedRequest, SimulatedResult, Workload

_LAST_STEP_S = 1.0
"""More than any step; an aborted generation leaves the engine at the end of its step."""


class _Quiet(EngineSettings):
    """Settings of an engine without heartbeats, which would take time in it."""

    heartbeat_s: ClassVar[float] = 0.0


class LeftoverError(Exception):
    """Requests or work were left when every request should have ended: a bug in the server."""


def simulate(workload: Workload, policy: Policy, requests: Sequence[SimulatedRequest]) -> list[SimulatedResult]:
    """Serve `requests`; return their results as they ended. Raises LeftoverError unless each has ended, once."""
    return virtual_time.run(_simulate(workload, policy, requests))


async def _simulate(workload: Workload, policy: Policy, requests: Sequence[SimulatedRequest]) -> list[SimulatedResult]:
    recorder = _Recorder()
    async with _serving(workload, policy, recorder) as (service, engine):
        loop = asyncio.get_running_loop()
        for number, typed in enumerate(requests):
            await asyncio.sleep(typed.at - service.now())
            deadline = Deadline.after(workload.deadline_s_of(typed), service.now())
            request = _request(number, typed, deadline, service.now())
            recorder.open[request.id] = typed
            completion = service.open(request)
            if workload.hangs_up:
                loop.call_at(typed.next_key_at, completion.cancel)
        await service.runner.wait_idle()
        await asyncio.sleep(_LAST_STEP_S)
        _check_nothing_left(service, engine, recorder)
    return recorder.results


@contextlib.asynccontextmanager
async def _serving(
    workload: Workload, policy: Policy, recorder: "_Recorder"
) -> AsyncIterator[tuple[Service, SupervisedEngine]]:
    """Run the server's service in front of an engine."""
    clock = LoopClock()
    engine = SupervisedEngine(_engine_maker(workload), _Quiet(warm_up=False), clock)
    service = Service(
        _settings(workload, policy),
        engine,
        _Prompts(),
        clock,
        recorder.handle,
    )
    service.gate.set_engine_ready(True)
    await engine.start()
    tasks = [asyncio.create_task(service.runner.run()), asyncio.create_task(engine.run())]
    await asyncio.sleep(0)
    yield service, engine
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await engine.stop()


def _settings(workload: Workload, policy: Policy) -> ServingSettings:
    scheduling = SchedulingSettings(
        max_slots=workload.num_slots,
        step_tolerance=0,
        order=cast("OrderName", policy.order),
        supersede=policy.supersede,
        typing_through=False,
        single_flight=False,  # simulated requests have no text
    )
    return ServingSettings(
        AdmissionSettings(user_requests_per_s=0, user_tokens_per_s=0),
        scheduling,
        ShedSettings(budget_ms=workload.budget_s * 1000, when=cast("ShedWhen", policy.shed), lag_ms=0),
    )


def _engine_maker(workload: Workload) -> Callable[[], Engine]:
    if workload.engine == "slots":
        return SlotEngine
    return lambda: ScriptedEngine(lambda _request: SIMULATED_TOKENS, TIMES, max_num_seqs=workload.num_slots)


def _request(number: int, typed: SimulatedRequest, deadline: Deadline, now: float) -> Request:
    caller = Caller(str(typed.user), str(typed.user))
    return Request(str(number), caller, number, "", "", "", "", NUM_TOKENS, now, deadline=deadline)


def _check_nothing_left(service: Service, engine: SupervisedEngine, recorder: "_Recorder") -> None:
    load = service.load()
    left = {
        "requests without an end": len(recorder.open),
        "ends too many": recorder.num_surplus_ends,
        "requests in the book": load.num_live + load.num_queued,
        "slots": load.num_occupied,
        "generations in the engine": engine.stats().num_running,
    }
    if any(left.values()):
        raise LeftoverError(", ".join(f"{num} {name}" for name, num in left.items() if num))


class _Prompts:
    """Prompts of one token, since a prompt takes the same time whatever its length."""

    def build(self, request: Request) -> Prompt:
        """Return the prompt, another one for each request."""
        return Prompt([request.sequence], (), 1, 1)

    def expected_new_tokens(self, _request: Request) -> int:
        """Return the number of tokens."""
        return 1


class _Recorder:
    """Records the result of each request."""

    def __init__(self) -> None:
        self.open: dict[str, SimulatedRequest] = {}
        self.num_surplus_ends = 0
        self.results: list[SimulatedResult] = []

    def handle(self, event: Event) -> None:
        """Record the end of a request; other events say nothing about a simulation."""
        if not isinstance(event, RequestEnded):
            return
        marks, reason = event.marks, event.end.outcome.reason
        typed = self.open.pop(event.request.id, None)
        if typed is None or marks.ended is None:
            self.num_surplus_ends += 1  # a listener must not raise
            return
        self.results.append(SimulatedResult(typed, reason, marks.started, marks.first_output, marks.ended))
