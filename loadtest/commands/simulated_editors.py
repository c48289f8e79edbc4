"""The command that lets simulated editors type, without a report: what the button of the server's page runs."""

import os
import signal
import sys
import threading

import click

from loadtest.commands.outcome import refusing
from loadtest.driving.run import run_scenario
from loadtest.targets import parse_target
from loadtest.traffic.scenario import Scenario

_SCENARIO = "steady"


@click.command("simulated-editors")
@click.argument("server", metavar="HOST:PORT")
@click.option("--editors", type=click.IntRange(1, 1000), default=50, show_default=True, help="How many.")
@click.option("--seconds", type=click.FloatRange(1, 3600), default=60.0, show_default=True, help="For how long.")
@click.option("--while-input", is_flag=True, help="End at once when the standard input ends.")
def simulated_editors(server: str, editors: int, seconds: float, *, while_input: bool) -> None:
    """Let simulated editors type to a server without TLS for a while. `loadtest run` does the same with a report.

    \b
    Example:
      completion-server simulated-editors 127.0.0.1:50051 --editors 50 --seconds 60
    """
    if while_input:
        threading.Thread(target=_end_with_input, daemon=True).start()
    with refusing():
        scenario = Scenario.load(_SCENARIO, ()).scaled(sessions=editors, duration_s=seconds)
        result = run_scenario(scenario, [parse_target(f"grpc://{server}")], workers=1)
    if result.failure:
        raise click.ClickException(result.failure)


def _end_with_input() -> None:
    """Wait for the end of the standard input, then end the processes of this command."""
    while os.read(sys.stdin.fileno(), 4096):  # a thread within a buffered read would abort this process at its own end
        pass
    os.killpg(0, signal.SIGKILL)
