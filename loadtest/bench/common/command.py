"""The options and the expected errors that the commands of the benchmarks share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

import click

from completion_server.core.errors import ConfigError
from loadtest.bench.common.server import CommandError, NotAnsweredError
from loadtest.bench.common.texts import TooFewTextsError
from loadtest.driving.checks import CheckError
from loadtest.driving.worker_pool import RunError
from loadtest.processes.child import StartError
from loadtest.processes.counters import MetricsError
from loadtest.targets import TargetError
from loadtest.traffic.documents import DocumentsError
from loadtest.traffic.scenario import ScenarioError

P = ParamSpec("P")
R = TypeVar("R")

_EXPECTED = (
    CheckError,
    CommandError,
    ConfigError,
    DocumentsError,
    MetricsError,
    NotAnsweredError,
    RunError,
    ScenarioError,
    StartError,
    TargetError,
    TooFewTextsError,
)
"""Errors whose message is enough for the user."""

json_option = click.option("--json", "as_json_only", is_flag=True, help="Print the JSON object alone.")
typing_seed_option = click.option("--seed", type=int, default=0, show_default=True, help="Who types what and when.")


def config_options(command: Callable[P, R]) -> Callable[P, R]:
    """Add the options of the servers' configuration to a command: `config` and `overrides`."""
    config = click.option(
        "--config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="The server's TOML file.",
        default=Path("deploy/local/server.toml"),
        show_default=True,
    )
    help_text = "Set one key for all of them."
    overrides = click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help=help_text)
    return config(overrides(command))


@contextmanager
def expected_errors(*others: type[Exception], part: str = "") -> Iterator[None]:
    """Have an expected error, or one of `others`, end the command with its message. `part` is named before it."""
    expected: tuple[type[Exception], ...] = (*_EXPECTED, *others)
    try:
        yield
    except expected as error:
        raise click.ClickException(f"{part}: {error}" if part else str(error)) from error
