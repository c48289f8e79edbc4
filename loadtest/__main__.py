"""The command `loadtest`, also as `python -m loadtest`.

Exit status: 0 success, 1 a gate failed or more than 5% of the requests, 2 bad input, 3 an invalid run, 130 Ctrl-C.
"""

import click
from rich.table import Table

try:
    from loadtest.commands.run import compare, merge, report, run
    from loadtest.commands.searches import capacity
    from loadtest.commands.tune import tune_k
    from loadtest.simulation.command import simulate
    from loadtest.terminal import wide_console
    from loadtest.traffic.scenario import packaged_scenarios
except ModuleNotFoundError as error:
    raise SystemExit(f"loadtest needs the package {error.name}: install the extra loadtest") from None


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="completion-server", prog_name="loadtest")
def main() -> None:
    """Drive a code completion server with simulated editors, and report what their users saw."""


@main.command()
def scenarios() -> None:
    """List the packaged scenarios."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for scenario in packaged_scenarios():
        size = f"{scenario.sessions:,} sessions, {scenario.duration_s:g} s"
        table.add_row(scenario.name, size, " ".join(scenario.description.split()))
    wide_console().print(table)


for _command in (run, merge, report, compare, capacity, tune_k, simulate):
    main.add_command(_command)

if __name__ == "__main__":
    main()
