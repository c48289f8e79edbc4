"""Users and tenants get their shares of a simulated engine that is asked for more than it can serve."""

import pytest

from loadtest.bench.runner.benchmark import percentile
from tests.support.sharing import AbuseModel, beside_an_abuser, of_tenants, overload, pooled

SEEDS = range(1, 4)


def test_an_abuser_at_20_times_the_rate_hardly_moves_the_others_p99_at_twice_the_capacity() -> None:
    """The bounds leave room for chance in short runs."""
    workloads = [overload(load=2.0, seconds=5, seed=seed) for seed in SEEDS]
    calm = pooled([beside_an_abuser(each, None)[0] for each in workloads])
    users, abuser = map(pooled, zip(*(beside_an_abuser(each, AbuseModel()) for each in workloads), strict=True))
    assert percentile(users.ttft_s, 99) <= 1.25 * percentile(calm.ttft_s, 99)
    assert users.answered_share >= 0.82 * calm.answered_share
    assert users.num_tokens >= 0.9 * calm.num_tokens
    assert abuser.num_tokens < 0.3 * users.num_tokens


def test_a_tenant_with_twice_the_weight_gets_twice_the_tokens() -> None:
    runs = [of_tenants(overload(load=4.0, seconds=5, seed=seed), {"light": 1.0, "heavy": 2.0}) for seed in SEEDS]
    light, heavy = (sum(run[name].num_tokens for run in runs) for name in ("light", "heavy"))
    assert heavy / light == pytest.approx(2, rel=0.2)
