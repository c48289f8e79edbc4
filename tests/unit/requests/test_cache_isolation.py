"""What tenants and users share in each cache, and what an attacker learns from the time to a first text."""

import asyncio
import random
import string
from collections.abc import Sequence

import pytest

from completion_server.engine.settings import CacheScope
from loadtest.simulation import virtual_time
from tests.support.tenants import Ask, Seen, run_tenants

PREFIX, COMPLETION, FLIGHT = CACHES = ("prefix_cache", "completion_cache", "single_flight")
VICTIM = "acme", "victim"
CODE = "".join(f"value_{number} = load({number})\n" for number in range(30))
MOST_OF_NOTHING = 0.6
"""With 150 trials of a kind, a classifier that knows nothing has an AUC of up to this."""


async def trial(ask: Ask, cache: str, asked: str, attacker: tuple[str, str], document: str) -> Seen:
    """Return what an attacker, a tenant's user, sees of a document's completion after the victim has `asked`."""
    has_text, is_kept = asyncio.Event(), cache != PREFIX
    victim = asyncio.ensure_future(ask(*VICTIM, asked, is_kept, has_text.set))
    await (has_text.wait() if cache == FLIGHT else victim)
    seen = await ask(*attacker, document, is_kept, lambda: None)
    await victim
    return seen


async def ask_after_the_victim(cache: str, scope: CacheScope, tenant: str, user: str) -> Seen:
    async with run_tenants(1, scope) as ask:
        return await trial(ask, cache, CODE, (tenant, user), CODE)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize(
    ("scope", "tenant", "user", "is_hit"),
    [
        ("tenant", "acme", "bob", True),
        ("tenant", "initech", "bob", False),
        ("tenant", "initech", VICTIM[1], False),
        ("user", "acme", "bob", False),
        ("user", "initech", VICTIM[1], False),
    ],
)
def test_nothing_is_shared_beyond_the_scope(
    cache: str, scope: CacheScope, tenant: str, user: str, is_hit: bool
) -> None:
    assert virtual_time.run(ask_after_the_victim(cache, scope, tenant, user)).is_hit is is_hit


def auc(asked: Sequence[Seen], not_asked: Sequence[Seen]) -> float:
    """Return the AUC of the best threshold classifier: the share of the pairs that it ranks rightly."""
    wins = sum((a.ttft_s < b.ttft_s) + (a.ttft_s == b.ttft_s) / 2 for a in asked for b in not_asked)
    share = wins / (len(asked) * len(not_asked))
    return max(share, 1 - share)


def code(chance: random.Random) -> str:
    words = ("".join(chance.choices(string.ascii_lowercase, k=6)) for _ in range(60))
    return "".join(f"{a} = {b}({c})\n" for a, b, c in zip(words, words, words, strict=True)) + "result ="


async def classify(cache: str, tenant: str, trials: int) -> tuple[float, int]:
    """Return the AUC and the number of hits, where the victim has asked for the same text in half of the trials."""
    chance = random.Random("texts")
    found: tuple[list[Seen], list[Seen]] = ([], [])
    async with run_tenants(1) as ask:
        for number in range(trials):
            document, other = code(chance), code(chance)
            asked = other if number % 2 else document
            found[number % 2].append(await trial(ask, cache, asked, (tenant, "attacker"), document))
    return auc(*found), sum(seen.is_hit for kind in found for seen in kind)


@pytest.mark.parametrize("cache", CACHES)
def test_the_time_to_a_first_text_tells_nothing_of_another_tenant_and_everything_of_ones_own(cache: str) -> None:
    other, num_hits = virtual_time.run(classify(cache, "initech", 300))
    assert (other <= MOST_OF_NOTHING, num_hits) == (True, 0)
    own, num_hits = virtual_time.run(classify(cache, VICTIM[0], 30))
    assert (own > 0.99, num_hits) == (True, 15)
