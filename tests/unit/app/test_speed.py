"""What is measured after a start: times on the scripted engine, in virtual time."""

from typing import Any

import pytest

from completion_server.app.speed import Speed, measure_speed
from completion_server.engine.interface import EngineDeadError, GenerationRequest
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from tests.support.scripted import in_virtual_time, started

NUM_PROMPT_TOKENS = 300
TIMES = ServiceTimes(
    prefill_base_s=0.0,
    prefill_per_token_s=0.001,
    decode_base_s=0.020,
    decode_per_seq_s=0.0,
    draft_s=0.0,
    verify_per_token_s=0.0,
)


def typed(document: int, num_keys: int, num_tokens: int, cache_salt: str) -> GenerationRequest:
    """Return the request after some keys in a document; a key adds a block of the cache's."""
    start = 10_000 * (document + 1)
    tokens = list(range(start, start + NUM_PROMPT_TOKENS + 16 * num_keys))
    return GenerationRequest(f"{document}-{num_keys}", tokens, num_tokens, cache_salt=cache_salt)


async def engine(**settings: Any) -> ScriptedEngine:
    return await started(lambda _request: ["x"] * 100, TIMES, **settings)


@in_virtual_time
async def test_the_times_are_those_of_the_engine() -> None:
    speed = await measure_speed(await engine(), typed, 0.2, 60.0)
    assert speed.prompt_tokens_per_s == pytest.approx(1000, rel=0.1)
    assert speed.prompt_tokens_in(0.2) == pytest.approx(200, rel=0.1)
    assert speed.first_word_s < 0.05, "all but the last blocks of its prompt are cached"
    assert speed.tokens_per_s == pytest.approx(50, rel=0.1)


@pytest.mark.parametrize(("budget_s", "num_in_time"), [(0.001, 1), (10.0, 8)])
def test_as_many_begin_together_as_have_their_first_tokens_in_time(budget_s: float, num_in_time: int) -> None:
    @in_virtual_time
    async def measure() -> None:
        speed = await measure_speed(await engine(max_num_seqs=8), typed, budget_s, 60.0)
        assert speed.num_in_time == num_in_time

    measure()


@in_virtual_time
async def test_one_slow_moment_of_the_machine_does_not_tell_how_many_may_type() -> None:
    stalls = [5.0]
    slow = [0.0]

    def make(document: int, num_keys: int, num_tokens: int, cache_salt: str) -> GenerationRequest:
        if document and num_keys and stalls:  # the first time that two ask together
            slow[0] = stalls.pop()
        return typed(document, num_keys, num_tokens, cache_salt)

    def lengthen(step_s: float) -> float:
        step_s, slow[0] = step_s + slow[0], 0.0
        return step_s

    speed = await measure_speed(await engine(max_num_seqs=8, lengthen=lengthen), make, 1.0, 60.0)
    assert not stalls
    assert speed.num_in_time == 8


@in_virtual_time
async def test_an_engine_that_hangs_ends_the_start() -> None:
    hanging = await engine()
    hanging.hang()
    with pytest.raises(EngineDeadError, match="no output for 5 s"):
        await measure_speed(hanging, typed, 0.2, 5.0)


def test_people_read_what_they_will_feel() -> None:
    assert str(Speed(2000.0, 0.1804, 12.3, 2)) == "first word after 180 ms, 12 tokens/s, good for 2 editors"
    assert str(Speed(2000.0, 0.1804, 12.3, 1)).endswith(", good for 1 editor")
