"""The turns of servers, of which one runs at a time."""

from dataclasses import dataclass

from loadtest.bench.common.contest import Turns


@dataclass(eq=False)
class Server:
    is_running: bool = True

    def pause(self) -> None:
        assert self.is_running
        self.is_running = False

    def resume(self) -> None:
        assert not self.is_running
        self.is_running = True


def running(servers: list[Server]) -> list[bool]:
    return [each.is_running for each in servers]


async def test_one_server_runs_at_a_time() -> None:
    turns, servers = Turns(settle_s=0), [Server() for _ in range(3)]
    for place, server in enumerate(servers):
        turns.add(server)
        assert running(servers) == [other > place for other in range(3)], "those that start have the machine"
    for place in (1, 0, 0, 2, 1):
        await turns.give(servers[place])
        assert running(servers) == [other == place for other in range(3)]
