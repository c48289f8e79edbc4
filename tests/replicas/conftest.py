"""Three real servers, each of which finds a real Redis behind a proxy of its own."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.support.background import Background, background_loop
from tests.support.fault_proxy import FaultProxy
from tests.support.redis_servers import RedisServer, running
from tests.support.replicas import Replica, running_replicas

NUM_REPLICAS = 3


@dataclass
class ReplicaSet:
    """The servers, the proxies through which they reach Redis, and Redis."""

    replicas: list[Replica]
    proxies: list[FaultProxy]
    redis: RedisServer
    background: Background

    def heal(self) -> None:
        """End all faults of the proxies."""
        for proxy in self.proxies:
            self.background.run(proxy.heal())


@pytest.fixture(scope="module")
def replica_set() -> Iterator[ReplicaSet]:
    """Yield three servers. A test must leave Redis running and the proxies without faults."""
    redis = RedisServer()
    with ExitStack() as stack:
        stack.enter_context(running(redis))
        background = stack.enter_context(background_loop())
        proxies = [FaultProxy(redis.address, seed=number) for number in range(NUM_REPLICAS)]
        for proxy in proxies:
            background.run(proxy.__aenter__())
            stack.callback(lambda proxy=proxy: background.run(proxy.__aexit__(None, None, None)))
        addresses = [proxy.address for proxy in proxies]
        overrides = ("redis.timeout_ms=300", "redis.retry_s=0.1", "limits.max_tokens=512", "cache.enabled=false")
        replicas = stack.enter_context(running_replicas(addresses, *overrides))
        yield ReplicaSet(replicas, proxies, redis, background)
