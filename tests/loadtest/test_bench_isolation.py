"""What tenants and users share in each cache, and what a classifier learns from the time to a first text."""

import pytest

from completion_server.engine.settings import CacheScope
from loadtest.bench.isolation import CACHES, VICTIM, auc, measure, trial
from loadtest.simulation import virtual_time
from loadtest.simulation.tenants import Seen, run_tenants

CODE = "".join(f"value_{number} = load({number})\n" for number in range(30))


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


@pytest.mark.parametrize(("trials", "most"), [(300, 0.6), pytest.param(10_000, 0.55, marks=pytest.mark.full)])
def test_a_first_texts_time_tells_nothing_of_another_tenant_and_everything_of_ones_own(
    trials: int, most: float
) -> None:
    """With few trials, a classifier that knows nothing has an AUC of up to 0.6."""
    found = virtual_time.run(measure(run_tenants(1), trials, 1))
    for cache in CACHES:
        assert found[f"{cache}_hits"] == 0
        assert found[f"{cache}_auc"] <= most
        assert found[f"{cache}_hits_within_tenant"] == trials / 20, "half of a tenth"
        assert found[f"{cache}_auc_within_tenant"] > 0.99


def test_the_auc_is_the_share_of_the_pairs_that_are_ranked_rightly() -> None:
    assert auc([1.0, 2.0], [3.0, 4.0]) == auc([3.0, 4.0], [1.0, 2.0]) == 1.0
    assert auc([1.0, 4.0], [2.0, 3.0]) == auc([1.0, 1.0], [1.0, 1.0]) == 0.5
    assert auc([1.0, 3.0], [2.0, 4.0]) == 0.75
