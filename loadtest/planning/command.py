"""The `plan` command: options, tables and JSON."""

import difflib
import json
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args, get_type_hints

import click
from click.core import ParameterSource
from rich.console import Console
from rich.table import Table

from loadtest.planning.calculation import Plan, computed_tokens, plan_of
from loadtest.planning.inputs import MAX_SESSIONS, Inputs, Region
from loadtest.planning.model_config import KvType, read_model
from loadtest.terminal import wide_console

_MODEL = click.Path(exists=True, path_type=Path)
_NO_NUMBERS = (
    "A user's times between keys are independent draws of the load tester's typist.",
    "The sessions of a region are spread evenly over its servers, those of a lost one over the others by their shares.",
    "Requests wait for a slot in one queue (M/M/c). A draft model's own computation takes no time.",
    "Each session has one document. The KV cache holds nothing but whole documents, those that were asked for last.",
    "A request whose document is not in the cache computes all of it, and no other request waits for that.",
)
"""What the model assumes and no number says."""


def _option_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _input_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option for each input that has a text."""
    defaults = Inputs(1)
    for name, hint in reversed(get_type_hints(Inputs, include_extras=True).items()):
        kind, *metadata = get_args(hint)
        for text in (each for each in metadata if isinstance(each, str)):
            number, default = int if int in (kind, *get_args(kind)) else float, getattr(defaults, name)
            command = click.option(
                _option_of(name), type=number, default=default, show_default=default is not None, help=text
            )(command)
    return command


def _take_inputs(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
    """Make the keys of a file the defaults of the command's options. Its paths are relative to the file."""
    if path is None:
        return
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"{path} can't be read: {error}", ctx, param) from error
    keys = {max(each.opts, key=len).removeprefix("--").replace("-", "_"): each for each in ctx.command.params}
    ctx.default_map = {}
    for key, value in found.items():
        if key not in keys:
            near = difflib.get_close_matches(key, keys, n=1)
            hint = f"did you mean {near[0]}?" if near else "its keys are this command's options"
            raise click.BadParameter(f"{path} {key}: unknown key; {hint}", ctx, param)
        is_path = isinstance(keys[key].type, click.Path) and isinstance(value, str)
        ctx.default_map[keys[key].name or key] = path.parent / value if is_path else value


def _parse_regions(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[Region, ...]:
    """Parse NAME=SHARE, each; without any, return the default."""
    try:
        found = tuple(Region(name, float(share)) for name, _, share in (each.partition("=") for each in values))
    except ValueError as error:
        msg = f"must be NAME=SHARE, such as us-east=0.4, got {', '.join(values)}"
        raise click.BadParameter(msg, ctx, param) from error
    return found or Inputs(1).regions


@click.command()
@click.option(
    "--inputs",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=_take_inputs,
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
@click.option(
    "--region",
    "regions",
    multiple=True,
    metavar="NAME=SHARE",
    callback=_parse_regions,
    help="May be repeated; else three equal ones.",
)
@click.option("--model", type=_MODEL, help="The model's config.json or folder, for its memory. Else a Code Llama 13B.")
@click.option("--draft-model", type=_MODEL, help="The same of its draft model.")
@click.option(
    "--kv-dtype",
    type=click.Choice(get_args(KvType)),
    default="auto",
    show_default=True,
    help="Type of the KV cache with --model: the model's own, or FP8.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the tables.")
@_input_options
@click.pass_context
def plan(ctx: click.Context, /, as_json: bool, **given: Any) -> None:  # noqa: ANN401 - values of many options
    """Calculate GPUs and cost from the number of seats.

    Every number on this way is an option. The defaults describe an INT8 model of 13 billion parameters on an A100 and
    are assumptions: measure a server with the load tester and give its --server-per-s.

    \b
    Examples:
      completion-server plan --seats 20000
      completion-server plan --sessions 12000 --survive 1 --surge 1
      completion-server plan --seats 500 --region office=1 --server-per-s 60 --gpu-usd-hour 1.2
    """
    if (given["seats"] is None) == (given["sessions"] is None):
        raise click.UsageError("give either --seats or --sessions")
    given["sessions"] = given["sessions"] or max(1, round(given["seats"] * given["open_share"]))
    given |= _memory(ctx, **given)
    try:
        found = plan_of(Inputs(**{name: given[name] for name in get_type_hints(Inputs)}))
    except ValueError as error:
        name, colon, rest = str(error).partition(":")
        raise click.UsageError(f"{_option_of(name)}{colon}{rest}") from error
    if as_json:
        click.echo(json.dumps(_as_json(found), allow_nan=False))
        return
    _show(found, wide_console())


def _memory(
    ctx: click.Context, model: Path | None, draft_model: Path | None, kv_dtype: KvType, **_: object
) -> dict[str, Any]:
    """Return the memory of the models, except what is given as a number."""
    if model is None:
        if draft_model is not None:
            raise click.UsageError("--draft-model: needs --model")
        return {}
    try:
        models = [read_model(each, kv_dtype) for each in (model, draft_model) if each is not None]
    except ValueError as error:
        raise click.UsageError(f"--model or --draft-model: {error}") from error
    found = {
        "weights_gb": sum(each.weights_bytes for each in models) / 1e9,
        "kv_bytes_per_token": sum(each.kv_bytes_per_token for each in models),
    }
    return {name: value for name, value in found.items() if ctx.get_parameter_source(name) is ParameterSource.DEFAULT}


def _as_json(plan: Plan) -> dict[str, Any]:
    """Return the plan for JSON. Times are seconds, rates 1/s; a figure without a value is null."""
    found = asdict(plan) | {"model": _NO_NUMBERS}
    if plan.cache is not None:
        found["cache"] = {"kv_gb": plan.cache.kv_gb, "documents": plan.cache.documents}
        found["cache"]["hit_share"] = plan.cache.hit_share(plan.capacity.sessions)
    return found


def _show(plan: Plan, console: Console) -> None:
    """Print the plan, and what it assumes."""
    headline = f"{plan.gpus} GPU{'s' if plan.gpus > 1 else ''} in {len(plan.regions)} region(s): "
    cost = f"${plan.usd_per_hour:,.2f} an hour, ${plan.usd_per_shown:.6f} for a completion shown"
    console.print(headline + cost, style="bold", soft_wrap=True)
    steps = Table("from seats to GPUs", "", "how", box=None, padding=(0, 2, 0, 0))
    for row in _steps(plan):
        steps.add_row(*row)
    lost = f"with {max(1, plan.inputs.survive)} lost"
    columns = "region", "requests/s", "GPUs", "needed", "busy", f"busy {lost}", "document found", f"found {lost}"
    regions = Table(*columns, box=None, padding=(0, 2, 0, 0))
    for each in plan.regions:
        shares = each.busy, each.busy_if_lost, each.hit_share, each.hit_share_if_lost
        said = ("-" if share is None else f"{share:.0%}" for share in shares)
        regions.add_row(each.name, f"{each.requests_per_s:,.0f}", str(each.gpus), str(each.needed_gpus), *said)
    console.print(steps, regions)
    if short := [each.name for each in plan.regions if each.gpus < each.needed_gpus]:
        console.print(f"Too few GPUs in {', '.join(short)}.", style="red")
    if any(max(each.busy, each.busy_if_lost or 0) > 1 for each in plan.regions):
        sentence = "Busy above 100%: a region has more sessions than its servers answer in time, so users see fewer."
        console.print(sentence, style="red", soft_wrap=True)
    console.print("Assumed", style="bold")
    numbers = {name: value for name, value in asdict(plan.inputs).items() if isinstance(value, int | float)}
    console.print(", ".join(f"{name} {value:g}" for name, value in numbers.items()), soft_wrap=True)
    for sentence in _NO_NUMBERS if plan.cache else _NO_NUMBERS[:2]:
        console.print(sentence, soft_wrap=True)


def _steps(plan: Plan) -> Iterator[tuple[str, str, str]]:
    demand, capacity, inputs = plan.demand, plan.capacity, plan.inputs
    hour = demand.requests_per_s * 3600 / demand.sessions
    yield "open sessions", f"{demand.sessions:,}", "at the busiest time"
    yield "requests/s", f"{demand.requests_per_s:,.0f}", f"{hour:,.0f} a session-hour"
    yield "superseded", f"{demand.superseded_share:.0%}", "the next key comes before the answer is whole"
    yield "shown", f"{demand.shown_share:.1%}", f"{hour * demand.shown_share:,.0f} a session-hour"
    if plan.cache is not None:
        weights, fits = f"beside {inputs.weights_gb:.1f} GB of weights", f"{plan.cache.documents:.0f} documents fit"
        yield "KV cache", f"{plan.cache.kv_gb:.1f} GB", f"{weights}; {fits}"
        yield "document found there", f"{plan.cache.hit_share(capacity.sessions):.1%}", "of the requests"
        tokens = computed_tokens(capacity.sessions, demand, inputs, plan.cache)
        yield "tokens of a request", f"{tokens:.0f}", "computed: prompt, documents not found, and drafts"
    bounds = ", ".join(f"{name} {rate:,.0f}" for name, rate in capacity.bounds.items())
    yield "a server's sessions", f"{capacity.sessions:,.0f}", ""
    yield "a server's requests/s", f"{capacity.requests_per_s:,.0f}", bounds
