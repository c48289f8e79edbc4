"""The guard of one request, in virtual time."""

import asyncio
import math

import pytest

from completion_client.regions.silence import SilenceGuard
from loadtest.simulation import virtual_time

LIMIT_S = 0.2


class Server:
    """Sends something to others at some times, and answers a check at once or never."""

    def __init__(self, *, sent_at_s: float = -math.inf, answers: bool = False) -> None:
        self.sent_at_s = sent_at_s
        self.answers = answers
        self.num_checks = 0

    async def alive_at_s(self, since_s: float, within_s: float) -> float | None:
        if self.sent_at_s > since_s:
            return self.sent_at_s
        self.num_checks += 1
        if self.answers:
            return asyncio.get_running_loop().time()
        await asyncio.sleep(within_s)
        return None


def silent_at_s(server: Server, *, watched_s: float = 2.0) -> float | None:
    """Return when the guard of a request that is sent at 0 gives the server up; None if it does not."""
    found: list[float] = []

    async def watch() -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        server.sent_at_s += began_s
        guard = SilenceGuard(server.alive_at_s, lambda _silence_s: found.append(loop.time() - began_s))
        guard.expect_nowait(LIMIT_S)
        await asyncio.sleep(watched_s)
        guard.stop_nowait()

    virtual_time.run(watch())
    return found[0] if found else None


def test_a_server_that_sends_nothing_is_given_up_after_the_limit() -> None:
    assert silent_at_s(Server()) == pytest.approx(LIMIT_S)


def test_the_limit_counts_from_what_others_heard_last() -> None:
    assert silent_at_s(Server(sent_at_s=0.09)) == pytest.approx(0.09 + LIMIT_S)


def test_a_slow_server_is_asked_less_and_less_often() -> None:
    server = Server(answers=True)
    assert silent_at_s(server) is None
    assert server.num_checks == 4  # at 0.1, 0.3, 0.7 and 1.5 s
