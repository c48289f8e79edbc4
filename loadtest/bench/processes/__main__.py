"""Measures one engine's server with several front ends, with h2load as in `loadtest.bench.requests.h2load`.

The servers take turns on the machine. The best of all turns counts: the most requests in a second, with the CPU time
and the times of that turn. Two servers with nothing in common, loaded at once, show what the machine's cores allow.
"""

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console

from loadtest.bench.requests.h2load import OVERRIDES, H2loadTurn, find_h2load, framed_request, take_turn
from loadtest.bench.runner.benchmark import Result, ServerOptions, benchmark, option
from loadtest.bench.runner.figures import shown, text_table
from loadtest.bench.runner.server import ServerProcess

_CONNECTIONS = 32
"""Enough of them for the kernel to spread evenly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(ServerOptions):
    processes: tuple[int, ...] = option((1, 2, 4), "Front ends. May be repeated.", click.IntRange(1, 8))
    seconds: float = option(5.0, "Of each turn.", click.FloatRange(1))
    rounds: int = option(5, "Turns of each server.", click.IntRange(1))


@benchmark(_Options)
def main(options: _Options, _console: Console) -> Result:
    """Measure servers with several front ends. The last line is a JSON object.

    \b
    Example:
        python -m loadtest.bench.processes --processes 1 --processes 2 --rounds 10
    """
    program = find_h2load()
    turns: dict[int, list[H2loadTurn]] = {number: [] for number in options.processes}
    apart: list[H2loadTurn] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="h2load-")))

        def start(number: int, name: str) -> _Loaded:
            overrides = (*OVERRIDES, f"server.processes={number}", *options.overrides)
            server = stack.enter_context(ServerProcess(options.config, overrides))
            body = folder / name / "body"
            body.parent.mkdir()
            body.write_bytes(framed_request())
            return _Loaded(server, body)

        servers = {number: start(number, str(number)) for number in options.processes}
        pair = [start(1, f"apart-{each}") for each in range(2)]
        pool = stack.enter_context(ThreadPoolExecutor(len(pair)))
        for _ in range(options.rounds):
            for number, server in servers.items():
                turns[number].append(server.turn(program, options.seconds, _CONNECTIONS))
            both = [pool.submit(each.turn, program, options.seconds, _CONNECTIONS // len(pair)) for each in pair]
            apart.append(_together([each.result() for each in both]))
    runs = [{"processes": number} | _figures(each) for number, each in turns.items()]
    runs.append({"servers": len(pair)} | _figures(apart))
    names = list(runs[-1])[1:]
    rows = tuple((name, *(shown(each[name], 3) for each in runs)) for name in names)
    headings = ("", *(f"{each['processes']} front ends" for each in runs[:-1]), f"{len(pair)} servers")
    return Result(
        {"seconds": options.seconds, "rounds": options.rounds, "runs": runs}, [text_table("", headings, rows)]
    )


class _Loaded(NamedTuple):
    server: ServerProcess
    body: Path

    def turn(self, program: str, seconds: float, connections: int) -> H2loadTurn:
        address, pid = self.server.ready["address"], self.server.pid
        return take_turn(program, self.body, address, pid, seconds, connections, num_open=connections)


def _together(turns: Sequence[H2loadTurn]) -> H2loadTurn:
    """Return what servers did at the same time."""
    num_requests = sum(each.num_requests for each in turns)
    return H2loadTurn(
        cpu_ms=sum(each.cpu_ms * each.num_requests for each in turns) / num_requests,
        requests_per_s=sum(each.requests_per_s for each in turns),
        num_requests=num_requests,
        times_ms=sorted(time for each in turns for time in each.times_ms),
        client_cores=max(each.client_cores for each in turns),  # each counts those of both
    )


def _figures(turns: list[H2loadTurn]) -> dict[str, float]:
    best = max(turns, key=lambda turn: turn.requests_per_s)
    times = best.times_ms
    return {
        "requests_per_s": best.requests_per_s,
        "cpu_ms": best.cpu_ms,
        "p50_ms": times[len(times) // 2],
        "p99_ms": times[len(times) * 99 // 100],
        "client_cores": best.client_cores,
    }


if __name__ == "__main__":
    main()
