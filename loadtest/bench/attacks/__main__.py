"""Attacks this project's server in several ways, one after another, and measures the service of honest users.

Each attack meets a fresh server with the scripted engine and the configuration's own limits. 8 users ask 4 times a
second each, on connections of their own, half of them with a new Session stream for each request. A request is in time
if its first text comes within 200 ms. The attacker is a process of its own at a lower priority; all processes share the
cores of this machine.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import click
import psutil
from rich.console import Console
from rich.table import Table

from completion.v1 import completion_pb2 as pb
from completion_client import CompletionClient, ServiceError
from loadtest.bench.attacks.attacker import ATTACKS
from loadtest.bench.runner.benchmark import Result, ServerOptions, benchmark, option
from loadtest.bench.runner.figures import text_table
from loadtest.bench.runner.loops import open_loop
from loadtest.bench.runner.server import ServerProcess
from loadtest.processes.child import Child

_OVERRIDES = (
    "engine.kind=scripted",
    "engine.scripted_times=small_model_on_two_cores",
    # The defaults. Other benchmarks and deploy/local set no limit, because all their users have one address.
    "admission.max_sessions_per_peer=256",
    "admission.users_per_peer=2",
)
_LIST = "; ".join(f"{name}: {each.about}" for name, each in ATTACKS.items())
_PHASES = ("calm", "attack", "after")
_SECONDS = click.FloatRange(0.5)
_MIB = 1024 * 1024
_SAMPLE_S = 0.05
_REPORT_S = 30.0

_USERS = 8
_REQUESTS_PER_S = 4.0
"""Of each user."""
_IN_TIME_MS = 200.0
_GIVES_UP_S = 1.0
_MAX_TOKENS = 16
_LINES = "".join(f"def area_{number}(width, height):\n    return width * height\n\n\n" for number in range(40))


class HonestUsers(AsyncExitStack):
    """Users with a constant request rate, open loop. Users with odd numbers open a Session stream per request."""

    def __init__(self, address: str) -> None:
        """Connect when the context is entered."""
        super().__init__()
        self._clients = [CompletionClient(address, user=f"honest-{number}") for number in range(_USERS)]
        self._num_asked = 0

    async def __aenter__(self) -> "HonestUsers":
        """Connect.

        Raises:
            ConnectionLostError: one can't.

        """
        for client in self._clients:
            await self.enter_async_context(client)
            await client.connect()
        return self

    async def share_in_time(self, seconds: float) -> float:
        """Let all users send requests for a time; return the share of the requests that had text in time."""
        first_text_ms = await open_loop(_USERS * _REQUESTS_PER_S, seconds, self._first_text_ms)
        return sum(each is not None and each <= _IN_TIME_MS for each in first_text_ms) / len(first_text_ms)

    async def _first_text_ms(self, number: int, due: float) -> float | None:
        """Return the time from the intended time of a request to its first text; None without text within a second."""
        self._num_asked += 1
        user = number % _USERS
        request = pb.CompleteRequest(
            document_uri=f"file:///{user}.py",
            language_id="python",
            prefix=f"{_LINES}total_{self._num_asked} = ",
            suffix="\n\nprint(area_1(2, 3))\n",
            mode=pb.MODE_SINGLE_LINE,
            max_tokens=_MAX_TOKENS,
        )
        client, came_at = self._clients[user], list[float]()
        with contextlib.suppress(TimeoutError, ServiceError):
            async with asyncio.timeout(_GIVES_UP_S):
                if user % 2:
                    async with client.session() as session:
                        async for _text in session.submit_nowait(request):
                            came_at.append(time.perf_counter())
                else:
                    await client.complete(request, on_text=lambda _text: came_at.append(time.perf_counter()))
        return (came_at[0] - due) * 1000 if came_at else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(ServerOptions):
    attack: tuple[str, ...] = option((), "May be repeated; else all.", click.Choice(list(ATTACKS)))
    calm_s: float = option(5.0, "Before the attack.", _SECONDS)
    attack_s: float = option(10.0, "Under attack.", _SECONDS)
    after_s: float = option(5.0, "After it.", _SECONDS)


@benchmark(_Options, ServiceError, epilog=f"Attacks: {_LIST}.")
def main(options: _Options, console: Console) -> Result:
    """Attack a server and measure the service of its honest users. The last line is a JSON object.

    \b
    Example:
        python -m loadtest.bench.attacks --attack snippet_bomb --attack idle_sessions --json
    """
    found = []
    for name in options.attack or ATTACKS:
        console.print(f"{name}: {ATTACKS[name].about}")
        found.append(asyncio.run(_measure(name, options)))
        shares = ", ".join(f"{phase} {_share(found[-1], phase)}" for phase in _PHASES)
        console.print(f"  in time: {shares}; the attacker: {found[-1]['attacker']}")
    return Result({"attacks": found}, [_table(found)])


async def _measure(attack: str, options: _Options) -> Mapping[str, Any]:
    """Start a server with users, attack it, and let it recover.

    Raises:
        StartError: the server or the attacker did not come up, or ended early.

    """
    overrides = (*_OVERRIDES, *ATTACKS[attack].overrides, *options.overrides)
    async with ServerProcess(options.config, overrides) as server:
        address, process = server.ready["address"], psutil.Process(server.pid)
        async with HonestUsers(address) as users:
            await users.share_in_time(options.calm_s / 2)  # allocates the memory that is allocated once
            found = await _phase("calm", process, users, options.calm_s)
            async with _attacking(attack, address) as counts:
                found |= await _phase("attack", process, users, options.attack_s)
            found |= await _phase("after", process, users, options.after_s)
    return {"attack": attack, **found, "attacker": counts}


@asynccontextmanager
async def _attacking(attack: str, address: str) -> AsyncIterator[dict[str, int]]:
    """Attack meanwhile; the attacker's counts are there at the end."""
    command = (sys.executable, "-m", "loadtest.bench.attacks.attacker", attack, address)
    counts: dict[str, int] = {}
    with Child(attack, command, is_piped=True) as child:
        yield counts
        counts |= await asyncio.to_thread(child.ask, {"end": True}, _REPORT_S)


async def _phase(name: str, process: psutil.Process, users: HonestUsers, seconds: float) -> dict[str, float]:
    """Return the figures of a phase: the service of the honest users, and the server's memory."""
    serving, rss = asyncio.create_task(users.share_in_time(seconds)), [process.memory_info().rss]
    while not serving.done():
        await asyncio.wait([serving], timeout=_SAMPLE_S)
        rss.append(process.memory_info().rss)
    return {
        f"{name}_share_in_time": round(serving.result(), 4),
        f"{name}_peak_rss_mib": round(max(rss) / _MIB),
        f"{name}_last_rss_mib": round(rss[-1] / _MIB),
    }


def _share(figures: Mapping[str, Any], phase: str) -> str:
    return f"{figures[f'{phase}_share_in_time']:.0%}"


def _table(found: Sequence[Mapping[str, Any]]) -> Table:
    headings = ["attack"]
    for phase in _PHASES:
        headings += [f"in time, {phase}", "peak MiB"]
    rows = []
    for each in found:
        cells = [each["attack"]]
        for phase in _PHASES:
            cells += [_share(each, phase), str(each[f"{phase}_peak_rss_mib"])]
        rows.append([*cells, str(each["after_last_rss_mib"])])
    return text_table(
        "Honest requests with text within 200 ms, and the server's memory", [*headings, "MiB at the end"], rows
    )


if __name__ == "__main__":
    main()
