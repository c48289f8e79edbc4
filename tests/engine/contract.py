"""The contract of every engine, as tests.

A test module subclasses `EngineContract`, overrides its class attributes if needed, and provides two fixtures of
started engines: `engine`, which tests may share, and `doomed_engine`, which a test stops. The text may be any.
"""

import asyncio
import itertools
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from itertools import pairwise

import pytest

from completion_server.core.request import Sampling
from completion_server.engine.interface import (
    Engine,
    EngineDeadError,
    EngineStep,
    GenerationRequest,
    Output,
    constant_lookup,
)

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
    assert num_tokens <= request.max_tokens
    text = "".join(output.text for output in outputs)
    return Result(text, num_tokens, outputs[-1], {output.cached_prompt_tokens for output in outputs})


def prompt(num_tokens: int, variant: int) -> list[int]:
    """Return token ids from 10 to 499; two variants differ from the first token on."""
    return [10 + variant % 90, *(100 + (7 * at + 31 * variant) % 400 for at in range(num_tokens - 1))]


class EngineContract:
    """The tests. Ids and prompts differ from test to test, so that an engine can be shared."""

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
        async with asyncio.timeout(self.wait_s):
            while not holds():
                await asyncio.sleep(POLL_S)

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

    async def test_it_is_alive_and_has_its_info(self, engine: Engine) -> None:
        assert engine.is_alive
        assert engine.info.model
        assert engine.info.max_model_len >= 512
        assert engine.info.max_num_seqs >= 8
        assert engine.info.num_speculative_tokens >= 0

    async def test_a_generation_ends_at_max_tokens_or_before(self, engine: Engine) -> None:
        result = await run_request(engine, GenerationRequest("end", prompt(64, 1), 32))
        assert result.last.finish == "stop" or result.num_tokens == 32
        assert len(result.cached) == 1

    async def test_one_token_is_a_generation_too(self, engine: Engine) -> None:
        result = await run_request(engine, GenerationRequest("one", prompt(64, 2), 1))
        assert result.num_tokens == 1

    async def test_counters_count_generated_tokens(self, engine: Engine) -> None:
        await self.idle(engine)
        before = engine.stats()
        result = await run_request(engine, GenerationRequest("count", prompt(64, 3), 16))
        await self.idle(engine)
        per_step = 1 + engine.info.num_speculative_tokens
        num_generated = engine.stats().num_generated_tokens - before.num_generated_tokens
        assert result.num_tokens <= num_generated <= result.num_tokens + 2 * per_step

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

    async def test_generations_run_side_by_side(self, engine: Engine) -> None:
        requests = [GenerationRequest(f"side-{i}", prompt(64, 10 + i), 16 + i) for i in range(8)]
        async with asyncio.timeout(self.wait_s):
            results = await asyncio.gather(*(run_request(engine, request) for request in requests))
        for request, result in zip(requests, results, strict=True):
            assert result.last.finish == "stop" or result.num_tokens == request.max_tokens
        await self.idle(engine)

    async def test_a_stop_token_ends_it(self, engine: Engine) -> None:
        request = GenerationRequest("stop-token", prompt(64, 20), 16, stop_token_ids=tuple(range(self.vocab_size)))
        result = await run_request(engine, request)
        assert result.last.finish == "stop"
        assert result.num_tokens == 1

    async def test_the_urgent_goes_before_those_that_waited_longer(self, engine: Engine) -> None:
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
        async with asyncio.timeout(self.wait_s):
            await is_going.wait()
        task.cancel()
        await asyncio.wait([task])
        await self.check_freed(engine, num_aborted)

    async def test_cancelling_before_the_first_output_frees_it(self, engine: Engine) -> None:
        await self.idle(engine)
        num_aborted = engine.stats().num_aborted_tokens
        task = asyncio.create_task(run_request(engine, GenerationRequest("early", prompt(256, 32), 200)))
        for _ in range(3):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
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

    async def test_speculation_can_be_changed_unless_it_is_locked(self, engine: Engine) -> None:
        info = engine.info
        assert len(info.speculation_lookup) == info.max_num_seqs + 1
        assert max(info.speculation_lookup) == info.num_speculative_tokens
        assert (engine.speculation is None) == bool(info.speculation_locked_reason)
        assert bool(info.speculation_locked_reason) == (info.num_speculative_tokens == 0)

    async def test_the_number_of_speculative_tokens_changes_while_it_runs(self, engine: Engine) -> None:
        control, max_k, num_seqs = engine.speculation, engine.info.num_speculative_tokens, engine.info.max_num_seqs
        if control is None:
            return
        at_start = control.lookup
        assert at_start == engine.info.speculation_lookup
        for k in (0, 1, max_k):
            await self.idle(engine)
            control.set_lookup(constant_lookup(k, num_seqs))
            assert control.lookup == constant_lookup(k, num_seqs)
            result = await run_request(engine, GenerationRequest(f"draft-{k}", prompt(64, 42), 24))
            assert (result.last.drafted_tokens == 0) == (k == 0)
            assert result.last.drafted_tokens <= k * (result.num_tokens - 1)
        for invalid in (constant_lookup(max_k + 1, num_seqs), constant_lookup(-1, num_seqs), at_start[:-1]):
            with pytest.raises(ValueError, match=r"K must be between|entries, got"):
                control.set_lookup(invalid)
        assert control.lookup == constant_lookup(max_k, num_seqs)
        control.set_lookup(at_start)

    async def test_each_batch_size_has_its_number_of_speculative_tokens(self, engine: Engine) -> None:
        control, max_k, num_seqs = engine.speculation, engine.info.num_speculative_tokens, engine.info.max_num_seqs
        if control is None:
            return
        await self.idle(engine)
        control.set_lookup([0, max_k, 1, *[0] * (num_seqs - 2)])
        alone = await run_request(engine, GenerationRequest("batch-1", prompt(64, 43), 16))
        assert alone.last.drafted_tokens > 0
        await self.idle(engine)
        steps: list[EngineStep] = []
        engine.watch_steps(steps.append)
        await asyncio.gather(
            *(run_request(engine, GenerationRequest(f"batch-{i}", prompt(64, 44 + i), 24)) for i in range(4))
        )
        await self.idle(engine)
        full = [after for before, after in pairwise(steps) if before.num_seqs == after.num_seqs == 4]
        assert full
        assert {step.num_speculative_tokens for step in full} == {0}
        control.set_lookup(constant_lookup(max_k, num_seqs))
        engine.watch_steps(lambda _step: None)

    async def test_a_greedy_generation_has_the_same_text_over_changes(self, engine: Engine) -> None:
        control, max_k, num_seqs = engine.speculation, engine.info.num_speculative_tokens, engine.info.max_num_seqs
        await self.idle(engine)
        token_ids = prompt(64, 48)
        still = await run_request(engine, GenerationRequest("still", token_ids, 64))
        lookups = itertools.cycle(constant_lookup(k, num_seqs) for k in range(max_k + 1))
        text, num_outputs = "", 0
        async for output in engine.generate(GenerationRequest("moving", token_ids, 64)):
            text += output.text
            num_outputs += 1
            if control is not None and num_outputs % 3 == 0:
                control.set_lookup(next(lookups))
        assert text == still.text
        if control is not None:
            control.set_lookup(constant_lookup(max_k, num_seqs))

    async def test_a_request_may_refuse_drafts(self, engine: Engine) -> None:
        await self.idle(engine)
        token_ids = prompt(64, 47)
        with_drafts = await run_request(engine, GenerationRequest("drafted", token_ids, 32))
        steps: list[EngineStep] = []
        engine.watch_steps(steps.append)
        without = await run_request(engine, GenerationRequest("undrafted", token_ids, 32, Sampling(speculate=False)))
        await self.idle(engine)
        engine.watch_steps(lambda _step: None)
        assert without.text == with_drafts.text
        assert without.last.drafted_tokens == without.last.accepted_draft_tokens == 0
        assert not any(step.drafted for step in steps)
        beside = [
            GenerationRequest(f"beside-{i}", prompt(64, 80 + i), 32, Sampling(speculate=i % 2 == 0)) for i in range(4)
        ]
        results = await asyncio.gather(*(run_request(engine, request) for request in beside))
        drafted = [result.last.drafted_tokens > 0 for result in results]
        assert drafted == [engine.info.num_speculative_tokens > 0, False] * 2

    async def test_steps_are_reported_with_their_yield(self, engine: Engine) -> None:
        await self.idle(engine)
        steps: list[EngineStep] = []
        engine.watch_steps(steps.append)
        before = engine.stats().num_generated_tokens
        result = await run_request(engine, GenerationRequest("steps", prompt(64, 49), 24))
        await self.idle(engine)
        engine.watch_steps(lambda _step: None)
        assert sum(step.num_tokens for step in steps) == engine.stats().num_generated_tokens - before
        assert [step.has_prompts for step in steps] == [True] + [False] * (len(steps) - 1)
        assert all(step.seconds is not None and step.seconds > 0 for step in steps[1:])
        assert sum(sum(step.drafted) for step in steps) == result.last.drafted_tokens
        for step in steps:
            assert step.num_seqs == 1
            assert len(step.accepted) == step.num_speculative_tokens <= engine.info.num_speculative_tokens
            assert all(a <= d for a, d in zip(step.accepted, step.drafted, strict=True))
            assert list(step.accepted) == sorted(step.accepted, reverse=True)

    async def test_an_id_can_be_used_again_after_its_end(self, engine: Engine) -> None:
        for _ in range(2):
            assert (await run_request(engine, GenerationRequest("again", prompt(64, 40), 4))).num_tokens <= 4

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
