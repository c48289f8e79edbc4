"""The tokens of tenants on a day, added up by two replicas on a real Redis."""

from completion_server.admission.day_tokens import DayTokens
from completion_server.composition.day_sums import DaySums
from completion_server.state.secret import Secret
from tests.support.redis_servers import RedisServer
from tests.unit.state.stores import new_prefix, running_store

SECRET = Secret(b"s" * 32)
NOW_S = 10.0


async def test_replicas_learn_the_sum_also_after_redis_was_away(redis_server: RedisServer) -> None:
    prefix = new_prefix()
    async with (
        running_store(redis_server.address, retry_s=3600) as cut_off,
        running_store(redis_server.address) as store,
    ):
        here, there, restarted = (DayTokens(lambda: NOW_S) for _ in range(3))
        here.charge("acme", 60)
        there.charge("acme", 50)
        cut_off.breaker.failed("a test", 0.0)
        await DaySums(cut_off, SECRET, prefix, here).exchange()
        assert not here.wait_s("acme", 61)
        await DaySums(store, SECRET, prefix, there).exchange()
        assert not there.wait_s("acme", 51)
        await DaySums(store, SECRET, prefix, here).exchange()
        assert here.wait_s("acme", 110)
        assert not here.wait_s("acme", 111)
        restarted.charge("acme", 0)
        await DaySums(store, SECRET, prefix, restarted).exchange()
        assert restarted.wait_s("acme", 110)
        assert "acme" not in redis_server.cli("KEYS", f"{prefix}:*")
