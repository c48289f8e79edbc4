"""The share of requests that the completion cache answers, with one front end and with several.

Simulated editors without a cache of their own type the same keys against each server, so that what a user types along
is asked again. Each front end keeps its own answers.
"""

from dataclasses import dataclass

import click
from rich.console import Console

from loadtest.bench.runner.benchmark import Result, ServerOptions, benchmark, option
from loadtest.bench.runner.figures import shown, text_table
from loadtest.bench.runner.front_end import drive, editors
from loadtest.bench.runner.server import ServerProcess
from loadtest.traffic.scenario import Scenario

_OVERRIDES = ("cache.enabled=true", "shed.when=never", "speculation.mode=fixed")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(ServerOptions):
    processes: tuple[int, ...] = option((1, 2), "Front ends. May be repeated.", click.IntRange(1, 8))
    sessions: int = option(40, "Editors, each with a connection of its own.", click.IntRange(1))
    requests_per_s: float = option(10.0, "Of all editors.", click.FloatRange(0, min_open=True))
    seconds: float = option(150.0, "For each server.", click.FloatRange(1))


@benchmark(_Options)
def main(options: _Options, console: Console) -> Result:
    """Measure servers with several front ends. The last line is a JSON object.

    \b
    Example:
        python -m loadtest.bench.processes.cache --processes 1 --processes 4
    """
    tree = editors(options.sessions, options.requests_per_s, options.seconds, seed=1).model_dump()
    tree["editor"] |= {"cache_entries": 0, "mode": "single_line"}
    scenario = Scenario.of(tree)
    runs = []
    for number in options.processes:
        overrides = (*_OVERRIDES, f"server.processes={number}", *options.overrides)
        with ServerProcess(options.config, overrides) as server:
            target = f"server=grpc://{server.ready['address']}?connections={options.sessions}"
            counters = drive(scenario, target, server.pid, console)[0].total.counters
        hits, sent = counters["cache/local"] + counters["cache/shared"], counters["sent"]
        runs.append({"processes": number, "requests": sent, "errors": counters["errors"], "hit_share": hits / sent})
    rows = tuple((name, *(shown(each[name], 3) for each in runs)) for name in ("requests", "errors", "hit_share"))
    headings = ("", *(f"{each['processes']} front ends" for each in runs))
    return Result({"runs": runs}, [text_table("", headings, rows)])


if __name__ == "__main__":
    main()
