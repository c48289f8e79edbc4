"""Heartbeats and messages of shared limits: odd replies, duplicates, ages, and the goodbye."""

import asyncio
import logging
from typing import Any

import pytest

from completion_server.state.lease_scripts import HEARTBEAT, LEASE_RATE
from completion_server.state.leases import KNOWN_S, LeaseSync
from tests.support.lease_double import Reply
from tests.support.shared_limits import FakeReplicas


class OddStore:
    """Answers leases with something that is no answer."""

    def __init__(self, inner: Any, replies: dict[str, Any]) -> None:
        self._inner, self._replies, self.is_available = inner, replies, True

    def advance(self, now: float) -> None:
        self._inner.advance(now)

    def call_nowait(self, *command: Any, patience_s: float = 0.0) -> Any:
        if command[1] not in self._replies:
            return self._inner.call_nowait(*command)
        reply = Reply()
        reply.resolve(self._replies[command[1]])
        return reply


@pytest.mark.parametrize("odd", [None, [], [b"1", b"x", b"2"], [b"nan", b"1", b"1"], [b"1"], 5])
def test_an_unexpected_reply_is_as_good_as_none(odd: Any) -> None:
    replicas = FakeReplicas()
    store: Any = replicas[0].store
    replicas[0].sync._store = OddStore(store, {LEASE_RATE: odd, HEARTBEAT: odd})
    replicas[0].take("u", 3)
    replicas.advance(0.3)
    replicas[0].sync._store = store
    replicas.advance(1.0)
    assert replicas[0].take("u", 10) == 10


def test_replicas_grow_old_while_redis_does_not_answer() -> None:
    replicas = FakeReplicas()
    assert replicas[0].sync.num_alive == 3
    replicas[0].store.is_cut = True
    replicas.advance(4.0)
    assert replicas[0].sync.num_alive == 0
    assert min(each.age_s for each in replicas[0].sync.replicas) >= 3.0


def test_two_processes_with_one_id_are_found(caplog: pytest.LogCaptureFixture) -> None:
    replicas = FakeReplicas()
    replicas.advance(2.0)
    assert not replicas[0].sync.has_duplicate_id
    replicas.replicas.append(replicas.start("replica-0"))
    replicas.advance(3.0)
    assert replicas[0].sync.has_duplicate_id
    assert 1 <= sum("another process has the replica id" in each for each in caplog.messages) <= 2


def test_many_silent_replicas_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    replicas = FakeReplicas()
    del replicas.replicas[1:]
    with caplog.at_level(logging.WARNING):
        replicas.advance(20.0)
    assert sum("only 1 of 3 known replicas" in each for each in caplog.messages) == 1
    replicas.advance(KNOWN_S)
    assert replicas[0].ledger.num_replicas == 1


async def test_the_goodbye_comes_first() -> None:
    sent = []

    class Store:
        is_available = True

        def call_nowait(self, *command: Any, patience_s: float = 0.0) -> "asyncio.Future[Any]":
            sent.append(command[1])
            future = asyncio.get_running_loop().create_future()
            future.set_result([])
            return future

    replicas = FakeReplicas()
    replicas[0].take("u", 1)
    sync = LeaseSync(Store(), replicas[0].ledger, replicas.clock, lambda kind, key: kind + key, "replica-0")
    await sync.leave()
    assert sent[0] == HEARTBEAT
    assert LEASE_RATE in sent
