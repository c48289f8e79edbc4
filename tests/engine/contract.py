"""What every engine must do, whoever computes the tokens.

A test module subclasses `EngineContract`, sets what the class attributes say, and gives two fixtures of started
engines: `engine`, which tests may share, and `doomed_engine`, which a test stops. Nothing is assumed of what is said.
"""

import asyncio
import itertools
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from itertools import pairwise

import pytest

from completion_server.core.request import Sampling
from completion_server.engine.interface import Engine, EngineDeadError, GenerationRequest, Output, Step
from completion_server.speculation.schedule import Schedule, ScheduleError, SpeculationFixedError

POLL_S = 0.01


@dataclass(frozen=True)
class Result:
    """All that a generation gave."""

    text: str
    num_tokens: int
    last: Output
    cached: set[int]


async def run_job(engine: Engine, job: GenerationRequest) -> Result:
    """Run a job to its end, and check what holds of every generation."""
    outputs = [output async for output in engine.generate(job)]
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
    assert num_tokens <= job.max_tokens
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
    """How long to wait for what must come about."""
    quiet_s = 0.3
    """How long to watch that nothing more happens; many steps."""
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

    async def check_freed(self, engine: Engine, num_unwanted_before: int) -> None:
        """Check that an aborted generation's work ends within a bounded number of steps."""
        await self.idle(engine)
        await asyncio.sleep(self.quiet_s)
        stats = engine.stats()
        per_step = 1 + engine.info.num_speculative_tokens
        assert stats.num_wasted_tokens - num_unwanted_before <= self.num_steps_to_stop * per_step
        assert stats.kv_usage == 0.0
        await asyncio.sleep(self.quiet_s)
        assert engine.stats().num_generated_tokens == stats.num_generated_tokens

    async def test_it_is_alive_and_says_what_it_is(self, engine: Engine) -> None:
        assert engine.is_alive
        assert engine.info.model
        assert engine.info.max_model_len >= 512
        assert engine.info.max_num_seqs >= 8
        assert engine.info.num_speculative_tokens >= 0

    async def test_a_generation_ends_at_max_tokens_or_before(self, engine: Engine) -> None:
        result = await run_job(engine, GenerationRequest("end", prompt(64, 1), 32))
        assert result.last.finish == "stop" or result.num_tokens == 32
        assert len(result.cached) == 1

    async def test_one_token_is_a_generation_too(self, engine: Engine) -> None:
        result = await run_job(engine, GenerationRequest("one", prompt(64, 2), 1))
        assert result.num_tokens == 1

    async def test_counters_count_what_was_generated(self, engine: Engine) -> None:
        await self.idle(engine)
        before = engine.stats()
        result = await run_job(engine, GenerationRequest("count", prompt(64, 3), 16))
        await self.idle(engine)
        per_step = 1 + engine.info.num_speculative_tokens
        num_generated = engine.stats().num_generated_tokens - before.num_generated_tokens
        assert result.num_tokens <= num_generated <= result.num_tokens + 2 * per_step

    async def test_the_same_prompt_is_cached_under_its_salt_alone(self, engine: Engine) -> None:
        token_ids = prompt(400, 4)
        first = await run_job(engine, GenerationRequest("salt-1", token_ids, 4, cache_salt="a"))
        again = await run_job(engine, GenerationRequest("salt-2", token_ids, 4, cache_salt="a"))
        other = await run_job(engine, GenerationRequest("salt-3", token_ids, 4, cache_salt="b"))
        assert first.cached == {0}
        assert 0 < min(again.cached) <= max(again.cached) < len(token_ids)
        assert other.cached == {0}

    async def test_without_temperature_it_repeats_itself(self, engine: Engine) -> None:
        await run_job(engine, GenerationRequest("greedy-0", prompt(64, 5), 24))
        first, second = [await run_job(engine, GenerationRequest(f"greedy-{i}", prompt(64, 5), 24)) for i in (1, 2)]
        assert (first.text, first.num_tokens, first.last.finish) == (second.text, second.num_tokens, second.last.finish)

    async def test_generations_run_side_by_side(self, engine: Engine) -> None:
        jobs = [GenerationRequest(f"side-{i}", prompt(64, 10 + i), 16 + i) for i in range(8)]
        async with asyncio.timeout(self.wait_s):
            results = await asyncio.gather(*(run_job(engine, job) for job in jobs))
        for job, result in zip(jobs, results, strict=True):
            assert result.last.finish == "stop" or result.num_tokens == job.max_tokens
        await self.idle(engine)

    async def test_a_stop_token_ends_it(self, engine: Engine) -> None:
        job = GenerationRequest("stop-token", prompt(64, 20), 16, stop_token_ids=tuple(range(self.vocab_size)))
        result = await run_job(engine, job)
        assert result.last.finish == "stop"
        assert result.num_tokens == 1

    async def test_what_is_urgent_goes_before_what_waited_longer(self, engine: Engine) -> None:
        await self.idle(engine)
        num_seqs = engine.info.max_num_seqs
        running = [
            GenerationRequest(f"running-{i}", prompt(32, 200 + i), 32 + 4 * i, priority=1) for i in range(num_seqs)
        ]
        waiting = [GenerationRequest(f"waiting-{i}", prompt(32, 300 + i), 16, priority=1) for i in range(num_seqs)]
        urgent = GenerationRequest("urgent", prompt(32, 399), 16, priority=0)
        begun: list[str] = []

        async def run(job: GenerationRequest) -> None:
            is_first = True
            async for _output in engine.generate(job):
                if is_first:
                    begun.append(job.id)
                    is_first = False

        async with asyncio.timeout(self.wait_s):
            await asyncio.gather(*(run(job) for job in (*running, *waiting, urgent)))
        overtaken = [job_id for job_id in begun[begun.index("urgent") :] if job_id.startswith("waiting")]
        assert len(overtaken) >= num_seqs // 2, begun
        await self.idle(engine)

    async def test_closing_a_generation_frees_it(self, engine: Engine) -> None:
        await self.idle(engine)
        num_unwanted = engine.stats().num_wasted_tokens
        async with (
            asyncio.timeout(self.wait_s),
            aclosing(engine.generate(GenerationRequest("close", prompt(64, 30), 400))) as outputs,
        ):
            num_outputs = 0
            async for _output in outputs:
                num_outputs += 1
                if num_outputs == 3:
                    break
        await self.check_freed(engine, num_unwanted)

    async def test_cancelling_the_consumer_frees_it(self, engine: Engine) -> None:
        await self.idle(engine)
        num_unwanted = engine.stats().num_wasted_tokens
        is_going = asyncio.Event()

        async def consume() -> None:
            async for _output in engine.generate(GenerationRequest("cancel", prompt(64, 31), 400)):
                is_going.set()

        task = asyncio.create_task(consume())
        async with asyncio.timeout(self.wait_s):
            await is_going.wait()
        task.cancel()
        await asyncio.wait([task])
        await self.check_freed(engine, num_unwanted)

    async def test_cancelling_before_the_first_output_frees_it(self, engine: Engine) -> None:
        await self.idle(engine)
        num_unwanted = engine.stats().num_wasted_tokens
        task = asyncio.create_task(run_job(engine, GenerationRequest("early", prompt(256, 32), 200)))
        for _ in range(3):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        await self.check_freed(engine, num_unwanted)

    async def test_others_go_on_when_one_is_aborted(self, engine: Engine) -> None:
        kept = asyncio.create_task(run_job(engine, GenerationRequest("kept", prompt(64, 33), 48)))
        dropped = [
            asyncio.create_task(run_job(engine, GenerationRequest(f"dropped-{i}", prompt(64, 34 + i), 400)))
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

    async def test_draft_lengths_change_while_it_runs(self, engine: Engine) -> None:
        ceiling, num_seqs = engine.info.num_speculative_tokens, engine.info.max_num_seqs
        at_start = engine.speculation
        assert at_start.largest == ceiling
        if not ceiling:
            assert engine.info.speculation_fixed_because
            with pytest.raises(SpeculationFixedError):
                engine.set_speculation(Schedule.fixed(0, num_seqs))
            return
        assert not engine.info.speculation_fixed_because
        for k in (0, 1, ceiling):
            await self.idle(engine)
            engine.set_speculation(Schedule.fixed(k, num_seqs))
            assert engine.speculation == Schedule.fixed(k, num_seqs)
            result = await run_job(engine, GenerationRequest(f"draft-{k}", prompt(64, 42), 24))
            assert (result.last.drafted_tokens == 0) == (k == 0)
            assert result.last.drafted_tokens <= k * (result.num_tokens - 1)
        with pytest.raises(ScheduleError, match="over the"):
            engine.set_speculation(Schedule.fixed(ceiling + 1, num_seqs))
        assert engine.speculation == Schedule.fixed(ceiling, num_seqs)
        engine.set_speculation(at_start)

    async def test_each_batch_size_has_its_draft_length(self, engine: Engine) -> None:
        ceiling, num_seqs = engine.info.num_speculative_tokens, engine.info.max_num_seqs
        if not ceiling:
            return
        await self.idle(engine)
        engine.set_speculation(Schedule.of_lookup([0, ceiling, 1, *[0] * (num_seqs - 2)]))
        alone = await run_job(engine, GenerationRequest("batch-1", prompt(64, 43), 16))
        assert alone.last.drafted_tokens > 0
        await self.idle(engine)
        steps: list[Step] = []
        engine.watch_steps(steps.append)
        await asyncio.gather(
            *(run_job(engine, GenerationRequest(f"batch-{i}", prompt(64, 44 + i), 24)) for i in range(4))
        )
        await self.idle(engine)
        full = [after for before, after in pairwise(steps) if before.num_seqs == after.num_seqs == 4]
        assert full
        assert {step.num_draft_tokens for step in full} == {0}
        engine.set_speculation(Schedule.fixed(ceiling, num_seqs))
        engine.watch_steps(lambda _step: None)

    async def test_a_greedy_generation_says_the_same_over_changes(self, engine: Engine) -> None:
        ceiling, num_seqs = engine.info.num_speculative_tokens, engine.info.max_num_seqs
        await self.idle(engine)
        token_ids = prompt(64, 48)
        still = await run_job(engine, GenerationRequest("still", token_ids, 64))
        lengths = itertools.cycle(range(ceiling + 1))
        text, num_outputs = "", 0
        async for output in engine.generate(GenerationRequest("moving", token_ids, 64)):
            text += output.text
            num_outputs += 1
            if ceiling and num_outputs % 3 == 0:
                engine.set_speculation(Schedule.fixed(next(lengths), num_seqs))
        assert text == still.text
        if ceiling:
            engine.set_speculation(Schedule.fixed(ceiling, num_seqs))

    async def test_a_generation_may_want_no_drafts(self, engine: Engine) -> None:
        await self.idle(engine)
        token_ids = prompt(64, 47)
        with_drafts = await run_job(engine, GenerationRequest("drafted", token_ids, 32))
        steps: list[Step] = []
        engine.watch_steps(steps.append)
        without = await run_job(engine, GenerationRequest("undrafted", token_ids, 32, Sampling(speculate=False)))
        await self.idle(engine)
        engine.watch_steps(lambda _step: None)
        assert without.text == with_drafts.text
        assert without.last.drafted_tokens == without.last.accepted_draft_tokens == 0
        assert not any(step.drafted for step in steps)
        beside = [
            GenerationRequest(f"beside-{i}", prompt(64, 80 + i), 32, Sampling(speculate=i % 2 == 0)) for i in range(4)
        ]
        results = await asyncio.gather(*(run_job(engine, job) for job in beside))
        drafted = [result.last.drafted_tokens > 0 for result in results]
        assert drafted == [engine.info.num_speculative_tokens > 0, False] * 2

    async def test_steps_are_told_with_what_they_yielded(self, engine: Engine) -> None:
        await self.idle(engine)
        steps: list[Step] = []
        engine.watch_steps(steps.append)
        before = engine.stats().num_generated_tokens
        result = await run_job(engine, GenerationRequest("steps", prompt(64, 49), 24))
        await self.idle(engine)
        engine.watch_steps(lambda _step: None)
        assert sum(step.num_tokens for step in steps) == engine.stats().num_generated_tokens - before
        assert [step.has_prompts for step in steps] == [True] + [False] * (len(steps) - 1)
        assert all(step.seconds is not None and step.seconds > 0 for step in steps[1:])
        assert sum(sum(step.drafted) for step in steps) == result.last.drafted_tokens
        for step in steps:
            assert step.num_seqs == 1
            assert len(step.accepted) == step.num_draft_tokens <= engine.info.num_speculative_tokens
            assert all(a <= d for a, d in zip(step.accepted, step.drafted, strict=True))
            assert list(step.accepted) == sorted(step.accepted, reverse=True)

    async def test_an_id_can_be_used_again_after_its_end(self, engine: Engine) -> None:
        for _ in range(2):
            assert (await run_job(engine, GenerationRequest("again", prompt(64, 40), 4))).num_tokens <= 4

    async def test_stopping_ends_what_runs_and_refuses_what_comes(self, doomed_engine: Engine) -> None:
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
        with pytest.raises(EngineDeadError):
            doomed_engine.set_speculation(Schedule.fixed(0, 1))
