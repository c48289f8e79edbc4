"""The `plan` command."""

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_args

import click
from click.core import ParameterSource
from rich.console import Console

from loadtest.planning import tables
from loadtest.planning.assumptions import MAX_SESSIONS, SECTIONS, Assumptions, assumptions_of
from loadtest.planning.fleet import FleetRequirements, Plan, Region, plan_of
from loadtest.planning.inputs import take_inputs
from loadtest.planning.model_config import KvType, ModelConfigError, read_model
from loadtest.planning.report import LatencyGoal, Measured, ReportError, read_measured
from loadtest.traffic.typist import TypingModel

_WIDTH = 120
"""Width of tables without a terminal."""
_REGIONS = ("us-east", "us-west", "eu-west")
_TYPIST_DEBOUNCE_S = 0.05
"""Of the editors of `make bench-capacity`, who are never away."""
_HEADINGS = {
    "users": "How people type, at the busiest time",
    "answers": "Completions",
    "gpu": "One server (a measured one needs none of these)",
    "memory": "Memory of a server, in GB of 10^9 bytes (a measured one needs none of these)",
    "money": "Money",
}
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_MODEL = click.Path(exists=True, path_type=Path)
_NEW_FILE = click.Path(dir_okay=False, writable=True, path_type=Path)


class _SectionedCommand(click.Command):
    """Lists the options of each section of assumptions under a heading of their own."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options into the help."""
        headings = {name: _HEADINGS[section] for section, kind in SECTIONS.items() for name in assumptions_of(kind)}
        rows: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            if row is not None:
                rows.setdefault(headings.get(parameter.name or "", "Options"), []).append(row)
        for heading, records in rows.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def _assumption_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option for each assumption."""
    for kind in reversed(SECTIONS.values()):
        estimated = assumptions_of(kind)
        for field in reversed(fields(kind)):
            if field.name in estimated:
                assert field.default is not MISSING
                each = estimated[field.name]
                estimates = "" if each.low is None else f" Estimates: {each.low:g} to {each.high:g}."
                command = click.option(
                    tables.option_of(field.name),
                    field.name,
                    type=int if isinstance(field.default, int) else float,
                    default=field.default,
                    show_default=True,
                    help=f"{each.text}{estimates}",
                )(command)
    return command


class _RegionType(click.ParamType[Region]):
    """NAME=SHARE."""

    name = "NAME=SHARE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Region:  # noqa: ANN401
        """Parse one value."""
        if isinstance(value, Region):
            return value
        name, _, share = str(value).partition("=")
        try:
            return Region(name, float(share))
        except ValueError:
            self.fail(f"must be NAME=SHARE, such as us-east=0.4, got {value!r}", param, ctx)


@click.command(cls=_SectionedCommand)
@click.option(
    "--inputs",
    type=_FILE,
    is_eager=True,
    expose_value=False,
    callback=take_inputs,
    help="TOML file of options: sessions = 12000. Those of the command line have precedence.",
)
@click.option("--seats", type=click.IntRange(1, MAX_SESSIONS), help="People who may use it. Instead of --sessions.")
@click.option(
    "--open-share",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.6,
    show_default=True,
    help="Share of the seats whose editor is open at the busiest time.",
)
@click.option("--sessions", type=click.IntRange(1, MAX_SESSIONS), help="Open editors at the busiest time.")
@click.option("--region", "regions", type=_RegionType(), multiple=True, help="May be repeated; else three equal ones.")
@click.option("--survive", type=int, default=0, show_default=True, help="Answer in time without so many regions.")
@click.option("--surge", type=int, default=0, show_default=True, help="Servers more in each region, for a rollout.")
@click.option("--gpus-per-region", type=int, help="Check this fleet instead of sizing one.")
@click.option("--model", type=_MODEL, help="The model's config.json or folder, for its memory. Else a Code Llama 13B.")
@click.option("--draft-model", type=_MODEL, help="The same of its draft model.")
@click.option(
    "--kv-dtype",
    type=click.Choice(get_args(KvType)),
    default="auto",
    show_default=True,
    help="Type of the KV cache with --model: the model's own, or FP8.",
)
@click.option("--report", type=_FILE, help="What one server did: `loadtest run --out`, `loadtest capacity --json`.")
@click.option("--target", help="The target of the report, if it has several.")
@click.option(
    "--report-servers",
    type=click.IntRange(1, 10_000),
    default=1,
    show_default=True,
    help="Servers that the report's load was spread over.",
)
@click.option(
    "--editors-per-server",
    type=click.FloatRange(0, 1e6, min_open=True),
    help="Instead of a report: editors that one server can promise an answer to (`make bench-capacity`).",
)
@click.option(
    "--server-per-s",
    type=click.FloatRange(0, 1e6, min_open=True),
    help="Instead of a report: requests a second that one server answers in time.",
)
@click.option(
    "--target-cost",
    type=click.FloatRange(0, 1e6, min_open=True),
    help="Say what would make a completion shown cost this many dollars.",
)
@click.option("--plot", type=_NEW_FILE, help="Draw the plan: .svg, .png or .pdf. Needs completion-server[loadtest].")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the tables.")
@_assumption_options
@click.pass_context
def plan(
    ctx: click.Context,
    /,
    seats: int | None,
    open_share: float,
    sessions: int | None,
    plot: Path | None,
    target_cost: float | None,
    *,
    as_json: bool,
    **given: Any,  # noqa: ANN401 - the options of the assumptions
) -> None:
    """Calculate GPUs and cost from the number of seats.

    People open editors; editors send a request at each short rest of the keys; most requests are overtaken by the next
    key; a server answers so many requests a second in time, fewer the more documents share its prefix cache; GPUs are
    paid for all hours, and completions that are shown are worth it. Every number on this way is an option. The defaults
    describe an INT8 model of 13 billion parameters on an A100 and are assumptions: measure a server with the load
    tester and give its --report.

    \b
    Examples:
      completion-server plan --seats 20000
      completion-server plan --sessions 12000 --survive 1 --surge 1 --plot plan.svg
      completion-server plan --sessions 12000 --gpus-per-region 4 --target-cost 0.0003
      completion-server plan --seats 500 --region office=1 --report run.json --gpu-usd-hour 1.2
    """
    if (seats is None) == (sessions is None):
        raise click.UsageError("give either --seats or --sessions")
    sessions = sessions or max(1, round((seats or 0) * open_share))
    found = _plan(sessions, given | _memory(ctx, given))
    if plot is not None:
        _draw(found, plot)
    if as_json:
        click.echo(json.dumps(tables.as_json(found, target_cost), allow_nan=False))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDTH)
    tables.show(found, console, seats=seats, target_usd=target_cost)


def _plan(sessions: int, given: Mapping[str, Any]) -> Plan:
    """Return the plan. Raises UsageError that names the option."""
    try:
        values = {section: {name: given[name] for name in assumptions_of(kind)} for section, kind in SECTIONS.items()}
        values["users"]["sessions"] = sessions
        assumptions = Assumptions(**{section: kind(**values[section]) for section, kind in SECTIONS.items()})
        regions = given["regions"] or tuple(Region(name, 1 / len(_REGIONS)) for name in _REGIONS)
        requirements = FleetRequirements(regions, given["survive"], given["surge"], given["gpus_per_region"])
        return plan_of(assumptions, requirements, _measured(assumptions, given))
    except ValueError as error:
        raise click.UsageError("\n".join(map(_with_option, str(error).splitlines()))) from error


def _memory(ctx: click.Context, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the memory of the models, except what is given as a number."""
    if given["model"] is None:
        if given["draft_model"] is not None:
            raise click.UsageError("--draft-model: needs --model")
        return {}
    models = []
    for option in ("model", "draft_model"):
        try:
            if given[option] is not None:
                models.append(read_model(given[option], given["kv_dtype"]))
        except ModelConfigError as error:
            raise click.UsageError(f"{tables.option_of(option)}: {error}") from error
    found = {
        "weights_gb": sum(each.weights_bytes for each in models) / 1e9,
        "kv_bytes_per_token": sum(each.kv_bytes_per_token for each in models),
    }
    return {name: value for name, value in found.items() if ctx.get_parameter_source(name) is ParameterSource.DEFAULT}


def _measured(assumptions: Assumptions, given: Mapping[str, Any]) -> Measured | None:
    report, editors, rate = given["report"], given["editors_per_server"], given["server_per_s"]
    if sum(each is not None for each in (report, editors, rate)) > 1:
        raise click.UsageError("give at most one of --report, --editors-per-server and --server-per-s")
    if rate is not None:
        return Measured(rate, None, f"given: {rate:g} requests/s")
    if editors is not None:
        rate = editors * TypingModel().requests_per_s(_TYPIST_DEBOUNCE_S)
        return Measured(rate, None, f"measured: {editors:g} editors who type all the time")
    if report is None:
        return None
    goal = LatencyGoal(assumptions.answers.within_ms, assumptions.answers.in_time)
    try:
        return read_measured(report, goal, servers=given["report_servers"], target=given["target"])
    except ReportError as error:
        raise click.UsageError(f"--report: {report} {error}") from error
    except OSError as error:
        raise click.UsageError(f"--report: {report} can't be read: {error.strerror}") from error


def _with_option(message: str) -> str:
    name, colon, rest = message.partition(":")
    return f"{tables.option_of(name)}{colon}{rest}"


def _draw(found: Plan, path: Path) -> None:
    try:
        from loadtest.planning.picture import FORMATS, draw
    except ImportError as error:
        msg = f"--plot: needs matplotlib; install completion-server[loadtest] ({error})"
        raise click.UsageError(msg) from error
    if path.suffix not in FORMATS:
        raise click.UsageError(f"--plot: must end in {', '.join(FORMATS)}, got {path.name!r}")
    try:
        draw(found, path)
    except OSError as error:
        raise click.UsageError(f"--plot: {path} can't be written: {error.strerror}") from error
