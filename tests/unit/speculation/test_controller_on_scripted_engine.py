"""The controller on the scripted engine, in virtual time, while the text changes."""

import asyncio
import itertools

import pytest

from completion_server.engine.interface import EngineStep, GenerationRequest
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from completion_server.speculation.controller import Controller
from completion_server.speculation.schedule import SpeculationSchedule
from loadtest.simulation import virtual_time

MAX_BATCH = 32


TIMES = ServiceTimes(
    prefill_base_s=1e-2, prefill_per_token_s=1e-4, decode_base_s=12e-3, decode_per_seq_s=1.4e-3,
    draft_s=4e-3, verify_per_token_s=2e-4,
)  # fmt: skip
"""The small model on two cores, four times slower: fewer steps to learn from."""
MAX_K = 5
PHASES = (0.85, 0.1, 0.85)
"""Boilerplate, prose, boilerplate."""
PHASE_S = 75.0
SETTLED_S = 30.0
WINDOW_S = 5.0
"""A window begins with each phase, so that no gain before a change makes up for a loss after it."""


async def ask_on(engine: ScriptedEngine, client: int) -> None:
    """Ask again and again, for so many tokens that clients don't go in step."""
    for number in itertools.count():
        num_tokens = 200 + (67 * client + 41 * number) % 200
        async for _output in engine.generate(GenerationRequest(f"{client}-{number}", [1 + client] * 40, num_tokens)):
            pass


def tokens_over_time(batch_size: int, k: int | None) -> list[tuple[float, int]]:
    """Return the times and the numbers of new tokens, with a constant K, or with the controller if it is None."""
    arrived: list[tuple[float, int]] = []

    async def main() -> None:
        engine = ScriptedEngine(times=TIMES, max_num_seqs=MAX_BATCH, num_speculative_tokens=MAX_K)
        await engine.start()
        loop = asyncio.get_running_loop()
        start = SpeculationSchedule.fixed(MAX_K if k is None else k, MAX_BATCH)
        control = engine.speculation
        assert control is not None
        control.set_lookup(start.lookup(MAX_BATCH))
        chooser = Controller(start, MAX_K, MAX_BATCH) if k is None else None

        def observe(step: EngineStep) -> None:
            arrived.append((loop.time(), step.num_tokens))
            schedule = chooser.observe(step, loop.time()) if chooser else None
            if schedule is not None:
                control.set_lookup(schedule.lookup(MAX_BATCH))

        engine.watch_steps(observe)
        clients = [asyncio.create_task(ask_on(engine, client)) for client in range(batch_size)]
        for acceptance in PHASES:
            engine.acceptance_rate = acceptance
            await asyncio.sleep(PHASE_S)
        for client in clients:
            client.cancel()
        await asyncio.wait(clients)
        await engine.stop()

    virtual_time.run(main())
    return arrived


def rate(arrived: list[tuple[float, int]], begin: float, end: float) -> float:
    return sum(num for at, num in arrived if begin <= at < end) / (end - begin)


@pytest.mark.parametrize("batch_size", [1, 4, 16])
def test_the_controller_follows_the_text(batch_size: int) -> None:
    auto = tokens_over_time(batch_size, None)
    fixed = [tokens_over_time(batch_size, k) for k in range(MAX_K + 1)]
    for phase in range(len(PHASES)):
        begin, end = phase * PHASE_S + SETTLED_S, (phase + 1) * PHASE_S
        best = max(rate(each, begin, end) for each in fixed)
        assert rate(auto, begin, end) >= 0.95 * best, phase
    for at in range(int(len(PHASES) * PHASE_S - WINDOW_S) + 1):
        assert rate(auto, at, at + WINDOW_S) >= 0.95 * rate(fixed[0], at, at + WINDOW_S), at
