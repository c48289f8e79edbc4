"""Measures several replicas of the server; each part prints its figures.

supersede: how soon a newer request on another replica ends the older one.
cache: requests that the completion cache answers, and what users see of it.
outage: what users notice while Redis is away or slow.
"""

from collections.abc import Callable
from typing import Any

from rich.console import Console

from completion_client import ServiceError
from loadtest.bench.replicas import cache, redis
from loadtest.bench.replicas.servers import PARTS, Figures, Options
from loadtest.bench.runner.benchmark import Result, benchmark, expected_errors
from loadtest.bench.runner.figures import figure_table, for_json

_MEASURES: dict[str, Callable[[Options, Console], Figures]] = {
    "supersede": redis.measure_supersede,
    "cache": cache.measure,
    "outage": redis.measure_outage,
}
"""Each starts what it needs, measures, stops it, and returns its figures."""


@benchmark(Options)
def main(options: Options, console: Console) -> Result:
    """Measure several replicas as one. The last line is a JSON object.

    \b
    Example:
        python -m loadtest.bench.replicas --part supersede --rounds 2
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
