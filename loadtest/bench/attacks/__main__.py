"""Attacks this project's server in several ways, one after another, and measures the service of honest users.

Each attack meets a fresh server with the scripted engine and the configuration's own limits. 8 users ask 4 times a
second each, on connections of their own, half of them with a new Session stream for each request. A request is in time
if its first text comes within 200 ms; one without text counts as 1 s in the 99th percentile. The attacker is a process
of its own at a lower priority; all processes share the cores of this machine.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import click
import grpc
import psutil
from rich.console import Console

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_client.endpoint import caller_metadata
from loadtest.bench.attacks.attacker import ATTACKS, MIB, typed
from loadtest.bench.runner.benchmark import ServerOptions, benchmark, option, percentile
from loadtest.bench.runner.contest import open_loop
from loadtest.bench.runner.server import CHANNEL_OPTIONS, ServerProcess
from loadtest.processes.child import Child

_OVERRIDES = (
    "engine.kind=scripted",
    "engine.scripted_times=small_model_on_two_cores",
    # The defaults. Other benchmarks and deploy/local set no limit, because all their users have one address.
    "admission.users_per_peer=2",
    "server.http_listen=127.0.0.1:0",
)
_LIST = "; ".join(f"{name}: {each.about}" for name, each in ATTACKS.items())
_SECONDS = click.FloatRange(0.5)
_SAMPLE_S, _START_S, _REPORT_S = 0.05, 60.0, 30.0
_USERS, _REQUESTS_PER_S = 8, 4.0
_IN_TIME_MS, _GIVES_UP_S, _CONNECTS_S = 200.0, 1.0, 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(ServerOptions):
    attack: tuple[str, ...] = option((), "May be repeated; else all.", click.Choice(list(ATTACKS)))
    calm_s: float = option(5.0, "Before the attack.", _SECONDS, quick=0.5)
    attack_s: float | None = option(None, "Under attack.  [each attack's own]", _SECONDS, quick=1.0)
    after_s: float = option(5.0, "After it.", _SECONDS, quick=0.5)


@benchmark(_Options, TimeoutError, epilog=f"Attacks: {_LIST}.")
def main(options: _Options, console: Console) -> Mapping[str, Any]:
    """Attack a server and measure the service of its honest users. The last line is a JSON object.

    \b
    Example:
        python -m loadtest.bench.attacks --attack snippet_bomb --attack idle_sessions --json
    """
    found = []
    for name in options.attack or ATTACKS:
        console.print(f"{name}: {ATTACKS[name].about}")
        found.append(asyncio.run(_measure(name, options)))
        shares = [f"{phase} {found[-1][f'{phase}_share_in_time']:.0%}" for phase in ("calm", "attack", "after")]
        rss = f"at most {found[-1]['attack_peak_rss_mib']} MiB"
        console.print(f"  in time: {', '.join(shares)}; {rss}; the attacker: {found[-1]['attacker']}")
    return {"attacks": found}


async def _measure(name: str, options: _Options) -> Mapping[str, Any]:
    """Start a server with users, attack it, and let it recover.

    Raises:
        StartError: the server or the attacker did not come up, or ended early.
        TimeoutError: a user can't connect.

    """
    attack = ATTACKS[name]
    async with ServerProcess(
        options.config, (*_OVERRIDES, *attack.overrides, *options.overrides), has_metrics=True
    ) as server:
        process, seconds = psutil.Process(server.pid), options.attack_s or attack.seconds
        addresses = server.ready["address"], server.ready["http_address"]
        command = (sys.executable, "-m", "loadtest.bench.attacks.attacker", name, *addresses)
        async with _HonestUsers(server.ready["address"]) as users:
            await users.ask(options.calm_s / 2)  # allocates the memory that is allocated once
            found: dict[str, Any] = {"attack": name, **await _phase("calm", process, users, options.calm_s)}
            with Child(name, command, is_piped=True) as child:
                await asyncio.to_thread(child.read_json, _START_S)
                found |= await _phase("attack", process, users, seconds)
                found["attacker"] = await asyncio.to_thread(child.ask, {"end": True}, _REPORT_S)
            found |= await _phase("after", process, users, options.after_s)
    return found


async def _phase(name: str, process: psutil.Process, users: "_HonestUsers", seconds: float) -> dict[str, float]:
    """Return the figures of a phase: the service of the honest users, and the server's memory."""
    serving, rss = asyncio.create_task(users.ask(seconds)), [process.memory_info().rss]
    while not serving.done():
        await asyncio.wait([serving], timeout=_SAMPLE_S)
        rss.append(process.memory_info().rss)
    first_text_ms = [1000 * _GIVES_UP_S if each is None else each for each in serving.result()]
    share = sum(each <= _IN_TIME_MS for each in first_text_ms) / len(first_text_ms)
    return {
        f"{name}_share_in_time": round(share, 4),
        f"{name}_p99_ms": round(percentile(first_text_ms, 99), 1),
        f"{name}_peak_rss_mib": round(max(rss) / MIB),
        f"{name}_last_rss_mib": round(rss[-1] / MIB),
    }


class _HonestUsers(AsyncExitStack):
    """Users with a constant request rate, open loop. Users with odd numbers open a Session stream per request."""

    def __init__(self, address: str) -> None:
        """Connect when the context is entered."""
        super().__init__()
        self._address = address
        self._stubs: list[Any] = []
        self._num_asked = 0

    async def __aenter__(self) -> "_HonestUsers":
        """Connect. Raises TimeoutError if one can't."""
        for _ in range(_USERS):
            channel = await self.enter_async_context(grpc.aio.insecure_channel(self._address, options=CHANNEL_OPTIONS))
            await asyncio.wait_for(channel.channel_ready(), _CONNECTS_S)
            self._stubs.append(CompletionServiceStub(channel))
        return self

    async def ask(self, seconds: float) -> list[float | None]:
        """Let all users send requests for a time; return the milliseconds to the first text of each, None for none."""
        return await open_loop(_USERS * _REQUESTS_PER_S, seconds, self._first_text_ms)

    async def _first_text_ms(self, number: int, due: float) -> float | None:
        """Return the time from the intended time of a request to its first text; None without text within a second."""
        self._num_asked += 1
        user, came_at = number % _USERS, list[float]()
        request, metadata = typed(f"honest-{user}", self._num_asked), caller_metadata(f"honest-{user}")
        with contextlib.suppress(TimeoutError, grpc.aio.AioRpcError):
            async with asyncio.timeout(_GIVES_UP_S):
                if user % 2:
                    call = self._stubs[user].Session(metadata=metadata)
                    await call.write(pb.SessionRequest(complete=request))
                else:
                    call = self._stubs[user].Complete(request, metadata=metadata)
                try:
                    await _read(call, came_at)
                finally:
                    call.cancel()
        return (came_at[0] - due) * 1000 if came_at else None


async def _read(call: Any, came_at: list[float]) -> None:  # noqa: ANN401 - a call of either method
    """Read an answer, and note the times at which text came."""
    async for event in call:
        if event.delta.text or event.end.text:
            came_at.append(time.perf_counter())
        if event.HasField("end") or (isinstance(event, pb.SessionResponse) and event.HasField("refusal")):
            return


if __name__ == "__main__":
    main()
