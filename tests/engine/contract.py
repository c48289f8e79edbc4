"""The contract of every engine, as tests; requests, prompts and checks for them.

A test module subclasses `EngineContract` and `SpeculationContract`, overrides class attributes if needed, and provides
two fixtures of started engines: `engine`, which tests may share, and `doomed_engine`, which a test stops. The text may
be any.
"""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

import pytest

from completion_server.engine.interface import Engine, EngineDeadError, GenerationRequest, Output
from tests.support.cancels import cancel_and_wait
from tests.support.server import eventually

POLL_S = 0.01


@dataclass(frozen=True)
class Result:
    """The output of a whole generation."""

    text: str
    num_tokens: int
    last: Output
    cached: set[int]


async def run_request(engine: Engine, request: GenerationRequest) -> Result:
    """Run a request to its end, and check the properties of every generation."""
    outputs = [output async for output in engine.generate(request)]
    assert outputs, "a generation without an output"
    assert [output.finish for output in outputs[:-1]] == [None] * (len(outputs) - 1)
    assert outputs[-1].finish in {"stop", "length"}
    for output in outputs:
        assert output.text.encode().decode() == output.text
        assert output.num_tokens >= 0
    drafted = [output.drafted_tokens for output in outputs]
    accepted = [output.accepted_draft_tokens for output in outputs]
    assert accepted == sorted(accepted)
    assert accepted[-1] <= drafted[-1]
    num_tokens = sum(output.num_tokens for output in outputs)
    assert num_tokens <= request.max_tokens + request.num_beginning_tokens
    text = "".join(output.text for output in outputs)
    return Result(text, num_tokens, outputs[-1], {output.cached_prompt_tokens for output in outputs})


def prompt(num_tokens: int, variant: int) -> list[int]:
    """Return token ids from 10 to 499; two variants differ from the first token on."""
    return [10 + variant % 90, *(100 + (7 * at + 31 * variant) % 400 for at in range(num_tokens - 1))]


class ContractChecks:
    """Limits and checks. Ids and prompts differ from test to test, so that the tests can share an engine."""

    vocab_size = 2048
    """All token ids are below this."""
    wait_s = 30.0
    """How long to wait for an expected condition."""
    quiet_s = 0.3
    """How long to check that nothing more happens; many steps."""
    num_steps_to_stop = 16
    """Steps that may still compute an aborted generation."""

    async def eventually(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition on the counters holds."""
        await eventually(holds, self.wait_s, POLL_S)

    async def idle(self, engine: Engine) -> None:
        """Wait until the engine has nothing to do."""
        await self.eventually(lambda: engine.stats().num_running == 0 and engine.stats().num_waiting == 0)

    async def check_freed(self, engine: Engine, num_aborted_before: int) -> None:
        """Check that the work for an aborted generation ends within a bounded number of steps."""
        await self.idle(engine)
        await asyncio.sleep(self.quiet_s)
        stats = engine.stats()
        per_step = 1 + engine.info.num_speculative_tokens
        assert stats.num_aborted_tokens - num_aborted_before <= self.num_steps_to_stop * per_step
        assert stats.kv_usage == 0.0
        await asyncio.sleep(self.quiet_s)
        assert engine.stats().num_generated_tokens == stats.num_generated_tokens


class EngineContract(ContractChecks):
    """The tests of generations, aborts and counters."""

    async def test_a_generation_ends_at_max_tokens_or_before(self, engine: Engine) -> None:
        result = await run_request(engine, GenerationRequest("end", prompt(64, 1), 32))
        assert result.last.finish == "stop" or result.num_tokens == 32
        assert len(result.cached) == 1

    async def test_the_same_prompt_is_cached_under_its_salt_alone(self, engine: Engine) -> None:
        token_ids = prompt(400, 4)
        first = await run_request(engine, GenerationRequest("salt-1", token_ids, 4, cache_salt="a"))
        again = await run_request(engine, GenerationRequest("salt-2", token_ids, 4, cache_salt="a"))
        other = await run_request(engine, GenerationRequest("salt-3", token_ids, 4, cache_salt="b"))
        assert first.cached == {0}
        assert 0 < min(again.cached) <= max(again.cached) < len(token_ids)
        assert other.cached == {0}

    async def test_without_temperature_it_repeats_itself(self, engine: Engine) -> None:
        await run_request(engine, GenerationRequest("greedy-0", prompt(64, 5), 24))
        first, second = [await run_request(engine, GenerationRequest(f"greedy-{i}", prompt(64, 5), 24)) for i in (1, 2)]
        assert (first.text, first.num_tokens, first.last.finish) == (second.text, second.num_tokens, second.last.finish)

    async def test_a_stop_token_ends_it(self, engine: Engine) -> None:
        request = GenerationRequest("stop-token", prompt(64, 20), 16, stop_token_ids=tuple(range(self.vocab_size)))
        result = await run_request(engine, request)
        assert result.last.finish == "stop"
        assert result.num_tokens == 1

    async def test_urgent_requests_run_before_earlier_ones(self, engine: Engine) -> None:
        await self.idle(engine)
        num_seqs = engine.info.max_num_seqs
        running = [
            GenerationRequest(f"running-{i}", prompt(32, 200 + i), 32 + 4 * i, priority=1) for i in range(num_seqs)
        ]
        waiting = [GenerationRequest(f"waiting-{i}", prompt(32, 300 + i), 16, priority=1) for i in range(num_seqs)]
        urgent = GenerationRequest("urgent", prompt(32, 399), 16, priority=0)
        begun: list[str] = []

        async def run(request: GenerationRequest) -> None:
            is_first = True
            async for _output in engine.generate(request):
                if is_first:
                    begun.append(request.id)
                    is_first = False

        async with asyncio.timeout(self.wait_s):
            await asyncio.gather(*(run(request) for request in (*running, *waiting, urgent)))
        overtaken = [request_id for request_id in begun[begun.index("urgent") :] if request_id.startswith("waiting")]
        assert len(overtaken) >= num_seqs // 2, begun
        await self.idle(engine)

    async def test_closing_a_generation_frees_it(self, engine: Engine) -> None:
        await self.idle(engine)
        num_aborted = engine.stats().num_aborted_tokens
        async with (
            asyncio.timeout(self.wait_s),
            aclosing(engine.generate(GenerationRequest("close", prompt(64, 30), 400))) as outputs,
        ):
            num_outputs = 0
            async for _output in outputs:
                num_outputs += 1
                if num_outputs == 3:
                    break
        await self.check_freed(engine, num_aborted)

    async def test_cancelling_the_consumer_frees_it(self, engine: Engine) -> None:
        await self.idle(engine)
        num_aborted = engine.stats().num_aborted_tokens
        is_going = asyncio.Event()

        async def consume() -> None:
            async for _output in engine.generate(GenerationRequest("cancel", prompt(64, 31), 400)):
                is_going.set()

        task = asyncio.create_task(consume())
        await self.eventually(is_going.is_set)
        await cancel_and_wait(task)
        await self.check_freed(engine, num_aborted)

    async def test_others_go_on_when_one_is_aborted(self, engine: Engine) -> None:
        kept = asyncio.create_task(run_request(engine, GenerationRequest("kept", prompt(64, 33), 48)))
        dropped = [
            asyncio.create_task(run_request(engine, GenerationRequest(f"dropped-{i}", prompt(64, 34 + i), 400)))
            for i in range(3)
        ]
        await asyncio.sleep(5 * POLL_S)
        for task in dropped:
            task.cancel()
        await asyncio.wait(dropped)
        async with asyncio.timeout(self.wait_s):
            result = await kept
        assert result.last.finish == "stop" or result.num_tokens == 48
        await self.idle(engine)

    async def test_stopping_ends_running_generations_and_refuses_later_ones(self, doomed_engine: Engine) -> None:
        outputs = doomed_engine.generate(GenerationRequest("open", prompt(64, 50), 400))
        await anext(outputs)
        async with asyncio.timeout(self.wait_s):
            await doomed_engine.stop()
            await doomed_engine.stop()
            with pytest.raises(EngineDeadError):
                async for _output in outputs:
                    pass
        assert not doomed_engine.is_alive
        with pytest.raises(EngineDeadError):
            await anext(doomed_engine.generate(GenerationRequest("late", prompt(64, 51), 4)))
        assert doomed_engine.speculation is None
