"""The contract of every engine about steps and speculation, as tests; see `contract`."""

import asyncio
import itertools
from itertools import pairwise

import pytest

from completion_server.core.request import Sampling
from completion_server.engine.interface import Engine, EngineStep, GenerationRequest, constant_lookup
from tests.engine.contract import ContractChecks, Result, prompt, run_request


class SpeculationContract(ContractChecks):
    """The tests of steps and of the number of speculative tokens."""

    async def test_speculation_can_be_changed_unless_it_is_locked(self, engine: Engine) -> None:
        info = engine.info
        assert len(info.speculation_lookup) == info.max_num_seqs + 1
        assert max(info.speculation_lookup) == info.num_speculative_tokens
        assert (engine.speculation is None) == bool(info.speculation_locked_reason)
        assert bool(info.speculation_locked_reason) == (info.num_speculative_tokens == 0)

    async def test_the_number_of_speculative_tokens_changes_while_it_runs(self, engine: Engine) -> None:
        if (control := engine.speculation) is None:
            return
        max_k, num_seqs = engine.info.num_speculative_tokens, engine.info.max_num_seqs
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

    async def test_prompts_computed_without_the_draft_model_are_not_reused_with_it(self, engine: Engine) -> None:
        if (control := engine.speculation) is None:
            return
        max_k, num_seqs = engine.info.num_speculative_tokens, engine.info.max_num_seqs
        await self.idle(engine)
        token_ids = prompt(300, 91)

        async def run(name: str) -> Result:
            return await run_request(engine, GenerationRequest(name, token_ids, 12))

        drafted = await run("before")
        control.switch_off()
        assert control.lookup == constant_lookup(0, num_seqs)
        without = await run("off")
        assert without.last.drafted_tokens == 0 < without.last.cached_prompt_tokens
        control.set_lookup(constant_lookup(max_k, num_seqs))
        fresh, again = await run("on"), await run("again")
        assert fresh.last.cached_prompt_tokens == 0 < again.last.cached_prompt_tokens
        assert min(fresh.last.drafted_tokens, again.last.drafted_tokens) > 0
        assert drafted.text == without.text == fresh.text == again.text

    async def test_each_batch_size_has_its_number_of_speculative_tokens(self, engine: Engine) -> None:
        if (control := engine.speculation) is None:
            return
        max_k, num_seqs = engine.info.num_speculative_tokens, engine.info.max_num_seqs
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
