"""Commands for operators: read and set the number of speculative tokens, and show its figures."""

import getpass
import json
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from completion.v1 import admin_pb2 as pb
from completion_client import Endpoint
from completion_server.client.operator_commands import ask_admin
from completion_server.client.options import admin_options
from completion_server.client.output import plain, rows_table

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_ROW = ("first_batch_size", "last_batch_size", "num_speculative_tokens")


@click.group()
def speculation() -> None:
    """Show or change the number of draft tokens for each step (K) on a running server.

    A larger K helps while few generations share a step and their text is predictable. Judge it by tokens per second;
    high acceptance alone is not enough.
    """


@speculation.command()
@admin_options()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def get(endpoint: Endpoint, as_json: bool) -> None:
    """Show the active K and its figures over the last minutes.

    With --json: schedule and table as rows of [first, last, K], mode (fixed, schedule or auto), by, since_unix_ms,
    max_num_speculative_tokens, figures, and fixed_because, "" where K can be changed.

    \b
    Examples:
      completion-server speculation get
      completion-server speculation get --json | jq .figures.acceptance
    """
    answer = ask_admin(endpoint, "GetSpeculation", pb.GetSpeculationRequest())
    if as_json:
        click.echo(json.dumps(as_dict(answer)))
    else:
        Console(highlight=False).print(_table(answer))


@speculation.command("set")
@admin_options()
@click.option("--k", type=click.IntRange(0), help="One K for all batch sizes; 0 switches speculation off.")
@click.option("--schedule", type=_FILE, help="JSON file: rows of [first, last, K], or an object that has them.")
@click.option(
    "--auto", "is_auto", is_flag=True, help="Let the server choose K by measured speed, from the present setting on."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def set_(endpoint: Endpoint, k: int | None, schedule: Path | None, is_auto: bool, as_json: bool) -> None:
    """Change K from the engine's next step on, without a restart.

    Running requests are not disturbed, and the setting survives a restart of the engine. A schedule has a row for each
    range of batch sizes, from 1 on without a gap; the last row also holds for larger batches. The largest K is the one
    that the engine was started with, which `get` shows.

    \b
    Examples:
      completion-server speculation set --k 4
      echo '[[1, 4, 4], [5, 16, 2], [17, 64, 0]]' > schedule.json
      completion-server speculation set --schedule schedule.json
      completion-server speculation set --auto
    """
    if (k is not None) + (schedule is not None) + is_auto != 1:
        raise click.UsageError("Give one of --k, --schedule and --auto.")
    mode = pb.SPECULATION_MODE_FIXED if schedule is None else pb.SPECULATION_MODE_SCHEDULE
    request = pb.SetSpeculationRequest(
        by=_operator_name(),
        mode=pb.SPECULATION_MODE_AUTO if is_auto else mode,
        num_speculative_tokens=k,
        schedule=read_schedule(schedule) if schedule else (),
    )
    answer = ask_admin(endpoint, "SetSpeculation", request)
    if as_json:
        click.echo(json.dumps(as_dict(answer)))
    else:
        click.echo(f"{endpoint.address}, {_mode(answer.mode)}: {_rows(answer.schedule)}")


def read_schedule(path: Path) -> list[pb.SpeculationRow]:
    """Return the rows of a JSON file: a list of them, or an object with one under "schedule".

    Raises click.UsageError if the file has no such rows, or those of an invalid tuning.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        rows = content["schedule"] if isinstance(content, dict) else content
        found = [pb.SpeculationRow(**dict(zip(_ROW, row, strict=True))) for row in rows]
    except (OSError, ValueError, TypeError, KeyError) as error:
        msg = f"--schedule {path}: must hold rows of [first, last, K] as JSON: {error}"
        raise click.UsageError(msg) from error
    if isinstance(content, dict) and content.get("valid") is False:
        msg = f'--schedule {path}: the tuning that wrote it is invalid; "troubles" in the file says why'
        raise click.UsageError(msg)
    return found


def as_dict(answer: pb.GetSpeculationResponse | pb.SetSpeculationResponse) -> dict[str, Any]:
    """Return an answer under the contract's names, with schedules as rows and counts as numbers."""
    found = plain(answer)
    found["mode"] = _mode(answer.mode)
    found["since_unix_ms"] = answer.since_unix_ms
    found["schedule"] = [_numbers(row) for row in answer.schedule]
    if isinstance(answer, pb.GetSpeculationResponse):
        found["table"] = [_numbers(row) for row in answer.table]
        counts = ("generated_tokens", "drafted_tokens", "accepted_tokens", "wasted_tokens")
        found["figures"] = plain(answer.figures) | {name: getattr(answer.figures, name) for name in counts}
    return found


def _numbers(row: pb.SpeculationRow) -> list[int]:
    return [row.first_batch_size, row.last_batch_size, row.num_speculative_tokens]


def _table(answer: pb.GetSpeculationResponse) -> Table:
    figures = answer.figures
    since = datetime.fromtimestamp(answer.since_unix_ms / 1000, UTC).astimezone()
    rows = [
        ("draft tokens", f"{_rows(answer.schedule)}; {answer.max_num_speculative_tokens} at most"),
        ("since", f"{since:%Y-%m-%d %H:%M:%S %z}"),
        ("set by", f"{answer.by or 'unknown'}, {_mode(answer.mode)}"),
        ("acceptance", _acceptance(figures)),
        ("tokens", f"{figures.drafted_tokens} drafted, {figures.wasted_tokens} of them wasted"),
        ("speed", f"{figures.tokens_per_s:.1f} tokens/s over the last {figures.window_s:.0f} s"),
    ]
    if answer.mode == pb.SPECULATION_MODE_AUTO:
        rows.insert(3, ("falls back to", _rows(answer.table)))
    if answer.fixed_because:
        rows.append(("can't change", answer.fixed_because))
    return rows_table(rows)


def _acceptance(figures: pb.SpeculationFigures) -> str:
    """Return the share of accepted draft tokens, in all and by position."""
    if not figures.HasField("acceptance"):
        return "nothing drafted"
    by_position = ", ".join(f"{share:.0%}" for share in figures.acceptance_by_position)
    return f"{figures.acceptance:.0%} ({by_position} by position), {figures.mean_accepted_length:.2f} tokens a step"


def _rows(schedule: "Any") -> str:  # noqa: ANN401 - protobuf's own sequence type
    """Return a schedule as a sentence."""
    parts = []
    for at, row in enumerate(schedule):
        is_last = at == len(schedule) - 1
        sizes = f"{row.first_batch_size} and more" if is_last else f"{row.first_batch_size} to {row.last_batch_size}"
        sizes = "any batch" if is_last and row.first_batch_size == 1 else f"batch {sizes}"
        parts.append(f"K={row.num_speculative_tokens} for {sizes}")
    return ", ".join(parts)


def _mode(mode: "pb.SpeculationMode.ValueType") -> str:
    return pb.SpeculationMode.Name(mode).removeprefix("SPECULATION_MODE_").lower()


def _operator_name() -> str:
    """Return user@host, with "?" for a user without a name."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "?"
    return f"{user}@{socket.gethostname()}"
