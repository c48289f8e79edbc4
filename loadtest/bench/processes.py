"""Measures one engine's server with several front ends, with h2load as in `loadtest.bench.requests.h2load`.

The servers take turns on the machine. The best of all turns counts: the most requests in a second, with the CPU time
and the times of that turn.
"""

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

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
    with ExitStack() as stack:
        body = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="h2load-")), "body")
        body.write_bytes(framed_request())
        servers = {
            number: stack.enter_context(
                ServerProcess(options.config, (*OVERRIDES, f"server.processes={number}", *options.overrides))
            )
            for number in options.processes
        }
        for _ in range(options.rounds):
            for number, server in servers.items():
                turns[number].append(
                    take_turn(program, body, server.ready["address"], server.pid, options.seconds, _CONNECTIONS)
                )
    runs = [{"processes": number} | _figures(each) for number, each in turns.items()]
    names = [name for name in runs[0] if name != "processes"]
    rows = tuple((name, *(shown(each[name], 3) for each in runs)) for name in names)
    headings = ("", *(f"{each['processes']} front ends" for each in runs))
    return Result(
        {"seconds": options.seconds, "rounds": options.rounds, "runs": runs}, [text_table("", headings, rows)]
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
