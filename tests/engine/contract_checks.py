"""Helpers of the engine contract: requests, prompts and checks."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from completion_server.engine.interface import (
    Engine,
    GenerationRequest,
    Output,
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
