"""Measures several replicas of the server; each part prints its figures.

routing: prefix-cache hits and seen completions, by hash, in rotation and on one large replica; the users that move when
one of four replicas is killed. Behind the real Envoy.
supersede: how soon a newer request on another replica ends the older one.
cache: requests that the completion cache answers, and what users see of it.
lookup: how long the completion cache takes to look a request up.
outage: what users notice while Redis is away or slow.
rate: what Redis costs the front end.
"""

from collections.abc import Callable
from typing import Any

from rich.console import Console

from completion_client import ServiceError
from loadtest.bench.replicas import cache, lookup, routing, shared_state
from loadtest.bench.replicas.servers import PARTS, Figures, Options
from loadtest.bench.runner.benchmark import Result, benchmark, expected_errors
from loadtest.bench.runner.figures import figure_table, for_json

_MEASURES: dict[str, Callable[[Options, Console], Figures]] = {
    "routing": routing.measure,
    "supersede": shared_state.measure_supersede,
    "cache": cache.measure,
    "lookup": lookup.measure,
    "outage": shared_state.measure_outage,
    "rate": shared_state.measure_rate,
}
"""Each starts what it needs, measures, stops it, and returns its figures."""


@benchmark(Options)
def main(options: Options, console: Console) -> Result:
    """Measure several replicas as one. The last line is a JSON object.

    \b
    Example:
        python -m loadtest.bench.replicas --part routing
        python -m loadtest.bench.replicas --part routing --kv-blocks 12000 --rounds 2
    """
    found: dict[str, Any] = {}
    tables = []
    for name in options.part or PARTS:
        with expected_errors(ServiceError, part=f"part {name}"):
            figures = _MEASURES[name](options, console)
        found |= figures
        console.print(f"part {name}: {for_json(figures)}")  # a later part may fail
        tables.append(figure_table(f"Part {name}", figures))
    return Result(found, tables)


if __name__ == "__main__":
    main()
