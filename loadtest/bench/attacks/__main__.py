"""Attacks this project's server in several ways, one after another, and measures the service of honest users.

Each attack meets a fresh server with the scripted engine and the configuration's own limits. 8 users ask 4 times a
second each, on connections of their own, half of them with a new Session stream for each request. A request is in time
if its first text comes within 200 ms. The attacker is a process of its own at a lower priority; all processes share the
cores of this machine.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

import click
from rich.console import Console
from rich.table import Table

from loadtest.bench.attacks.measure import Durations, measure
from loadtest.bench.attacks.registry import ATTACKS
from loadtest.bench.common.command import config_options, expected_errors
from loadtest.bench.common.figures import report_console
from loadtest.processes.child import end_on_sigterm

_PHASES = ("calm", "attack", "after")
_SECONDS = click.FloatRange(0.5)


class _Options(TypedDict):
    config: Path
    overrides: tuple[str, ...]
    calm_s: float
    attack_s: float
    after_s: float


@click.command(epilog="Attacks: " + "; ".join(f"{name}: {attack.about}" for name, attack in ATTACKS.items()) + ".")
@config_options
@click.option("--attack", "names", type=click.Choice(list(ATTACKS)), multiple=True, help="May be repeated; else all.")
@click.option("--calm-s", type=_SECONDS, default=5.0, show_default=True, help="Before the attack.")
@click.option("--attack-s", type=_SECONDS, default=10.0, show_default=True, help="Under attack.")
@click.option("--after-s", type=_SECONDS, default=5.0, show_default=True, help="After it.")
@click.option("--json", "as_json_only", is_flag=True, help="Print a JSON object as the last line, and no table.")
def main(names: tuple[str, ...], as_json_only: bool, **options: Unpack[_Options]) -> None:
    """Attack a server and measure the service of its honest users.

    \b
    Example:
        python -m loadtest.bench.attacks --attack snippet_bomb --attack idle_sessions --json
    """
    end_on_sigterm()
    progress = Console(stderr=True)
    found = []
    with expected_errors():
        for name in names or ATTACKS:
            progress.print(f"{name}: {ATTACKS[name].about}")
            durations = Durations(options["calm_s"], options["attack_s"], options["after_s"])
            measured = asyncio.run(measure(name, options["config"], options["overrides"], durations))
            found.append(measured.figures())
            progress.print(f"  in time: {', '.join(_shares(found[-1]))}; the attacker: {found[-1]['attacker']}")
    if as_json_only:
        click.echo(json.dumps({"attacks": found}))
    else:
        _print(found)


def _shares(figures: Mapping[str, Any]) -> list[str]:
    return [f"{phase} {_share(figures, phase)}" for phase in _PHASES]


def _share(figures: Mapping[str, Any], phase: str) -> str:
    return f"{figures[f'{phase}_share_in_time']:.0%}"


def _print(found: Sequence[Mapping[str, Any]]) -> None:
    table = Table(title="Honest requests with text within 200 ms, and the server's memory", title_justify="left")
    table.add_column("attack")
    for phase in _PHASES:
        table.add_column(f"in time, {phase}", justify="right")
        table.add_column("peak MiB", justify="right")
    table.add_column("MiB at the end", justify="right")
    for figures in found:
        row = [figures["attack"]]
        for phase in _PHASES:
            row += [_share(figures, phase), str(figures[f"{phase}_peak_rss_mib"])]
        table.add_row(*row, str(figures["after_last_rss_mib"]))
    report_console().print(table)


if __name__ == "__main__":
    main()
