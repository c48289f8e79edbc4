"""Measures several replicas of the server; each part prints its figures.

routing: prefix-cache hits and seen completions, by hash, in rotation and on one large replica; the users that move when
one of four replicas is killed. Behind the real Envoy.
supersede: how soon a newer request on another replica ends the older one.
cache: requests that the completion cache answers, and what users see of it.
lookup: how long the completion cache takes to look a request up.
outage: what users notice while Redis is away or slow.
rate: what Redis costs the front end.
"""

import json
from pathlib import Path
from typing import TypedDict, Unpack

import click
from rich.console import Console
from rich.table import Table

from loadtest.bench.common.command import config_options, expected_errors, json_option, typing_seed_option
from loadtest.bench.common.figures import report_console
from loadtest.bench.replicas import routing
from loadtest.bench.replicas.envoy import EnvoyMissingError
from loadtest.bench.replicas.options import Figures, Options
from loadtest.bench.replicas.shared import cache, lookup, outage, rate, supersede
from loadtest.processes.child import end_on_sigterm

PARTS = {part.name: part for part in (routing.PART, supersede.PART, cache.PART, lookup.PART, outage.PART, rate.PART)}


class _Options(TypedDict):
    rounds: int
    seconds: float
    users: int
    requests_per_s: float
    kv_blocks: int
    seed: int
    recorded: Path | None


@click.command()
@config_options
@click.option("--part", "parts", type=click.Choice(list(PARTS)), multiple=True, help="May be repeated.  [all]")
@click.option("--rounds", type=click.IntRange(1), default=4, show_default=True, help="Turns of each site.")
@click.option("--seconds", type=click.FloatRange(5), default=20.0, show_default=True, help="Length of a turn.")
@click.option("--users", type=click.IntRange(3), default=48, show_default=True, help="Users who type.")
@click.option(
    "--requests-per-s", type=click.FloatRange(1), default=40.0, show_default=True, help="Asked by all of them together."
)
@click.option(
    "--kv-blocks",
    type=click.IntRange(16),
    default=3000,
    show_default=True,
    help="KV cache of each of three replicas, in blocks of 16 tokens.",
)
@typing_seed_option
@click.option(
    "--recorded",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A recorded trace as a second workload of the part cache, in the form of the Azure traces of LLM inference.",
)
@json_option
def main(
    config: Path,
    overrides: tuple[str, ...],
    parts: tuple[str, ...],
    *,
    as_json_only: bool,
    **options: Unpack[_Options],
) -> None:
    """Measure several replicas as one. The last line is a JSON object.

    \b
    Example:
        python -m loadtest.bench.replicas --part routing
        python -m loadtest.bench.replicas --part routing --kv-blocks 12000 --rounds 2
    """
    end_on_sigterm()
    found: dict[str, float | None] = {}
    for name in parts or PARTS:
        with expected_errors(EnvoyMissingError, part=f"part {name}"):
            figures = PARTS[name].measure(Options(config, overrides, console=Console(stderr=True), **options))
        found |= figures
        if not as_json_only:
            _print(name, figures)
    click.echo(json.dumps(found))


def _print(name: str, figures: Figures) -> None:
    table = Table(title=f"Part {name}", title_justify="left", show_header=False)
    for figure, value in figures.items():
        table.add_row(figure, "-" if value is None else f"{value:,.4g}")
    report_console().print(table)


if __name__ == "__main__":
    main()
