"""The `profile` command: sends many requests and shows the time of each stage."""

import itertools
import json
import uuid
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypedDict, Unpack

import click
import grpc
from rich.console import Console
from rich.progress import track
from rich.table import Table

from completion.v1 import completion_pb2 as pb
from completion_client import Completion, Endpoint, blocking
from completion_client.endpoint import caller_metadata
from completion_client.regions.race import open_in_order
from completion_server.client.cursor import PositionError
from completion_server.client.options import fail, server_options
from completion_server.client.sources import SourcePosition, samples, standard_library
from completion_server.client.waterfall import PERCENTILES, Stage, summary, waterfall

_BAR_WIDTH = 28
_WARM_UP = 3
_ATTEMPTED = (pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH)


class _Options(TypedDict):
    requests: int
    concurrency: int
    mode: str
    max_tokens: int | None
    timeout_ms: int


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@server_options
@click.option("--requests", type=click.IntRange(1), default=100, show_default=True, help="How many requests to send.")
@click.option("--concurrency", type=click.IntRange(1, 256), default=1, show_default=True, help="How many at a time.")
@click.option("--mode", type=click.Choice(["single", "multi"]), default="single", show_default=True)
@click.option("--max-tokens", type=click.IntRange(1), help="Upper limit of tokens; the server's default if not given.")
@click.option("--timeout-ms", type=click.IntRange(1), default=10_000, show_default=True, help="Deadline of each.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the cursor positions.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the table.")
def profile(
    endpoints: Sequence[Endpoint], files: tuple[Path, ...], seed: int, as_json: bool, **options: Unpack[_Options]
) -> None:
    """Show how the time of requests divides into stages.

    Prints p50, p95, p99 and share of each stage, from the network to the last token. The cursor positions are in FILES,
    or in the Python standard library if none are given. Each request has a user of its own, so none supersedes another.
    A concurrency of 1 has no queue: use --concurrency and look at p95, not p50. Of several servers the nearest is
    profiled.

    \b
    Examples:
      completion-server profile
      completion-server profile --requests 500 --concurrency 16 src/*.py
    """
    try:
        positions = list(itertools.islice(samples(files or standard_library(), seed), _WARM_UP + options["requests"]))
    except PositionError as error:
        raise click.BadParameter(str(error), param_hint="FILES") from error
    with open_in_order(endpoints, "") as contenders:
        nearest = contenders[0]
        completions = _measure(nearest.channel, nearest.endpoint, positions, options)
    _report(completions, options["concurrency"], as_json)


def _measure(
    channel: grpc.Channel, endpoint: Endpoint, positions: Sequence[SourcePosition], options: _Options
) -> list[Completion]:
    """Send every request. The first ones warm the connection up and are not returned."""
    timeout_s = options["timeout_ms"] / 1000
    reached = blocking.connect(channel, timeout_s)
    run = f"profile-{uuid.uuid4().hex[:8]}"

    def one(numbered_sample: tuple[int, SourcePosition]) -> Completion:
        number, sample = numbered_sample
        request = _request(f"{run}-{number}", sample, options)
        return blocking.complete(channel, request, timeout_s=timeout_s, metadata=caller_metadata(request.session_id))

    numbered = enumerate(positions)
    for each in itertools.islice(numbered, _WARM_UP):
        if error := one(each).error:
            fail(error, endpoint, reached=reached)
    console = Console(stderr=True)
    with ThreadPoolExecutor(options["concurrency"]) as workers:
        completions = workers.map(one, numbered)
        return list(
            track(completions, "Sending", total=options["requests"], console=console, disable=not console.is_terminal)
        )


def _request(name: str, sample: SourcePosition, options: _Options) -> pb.CompleteRequest:
    return pb.CompleteRequest(
        session_id=name,
        sequence=1,
        document_uri=sample.uri,
        language_id=sample.language,
        prefix=sample.cursor.prefix,
        suffix=sample.cursor.suffix,
        trigger=pb.TRIGGER_AUTOMATIC,
        mode=pb.MODE_MULTI_LINE if options["mode"] == "multi" else pb.MODE_SINGLE_LINE,
        max_tokens=options["max_tokens"] or 0,
        without_completion_cache=True,
    )


def _report(completions: Sequence[Completion], concurrency: int, as_json: bool) -> None:
    attempted = [each for each in completions if each.end and each.end.finish_reason in _ATTEMPTED]
    endings = Counter(_ending(each) for each in completions)
    if not attempted:
        click.echo(f"Error: none of {len(completions)} requests was answered: {_counts(endings)}", err=True)
        raise click.exceptions.Exit(1)
    stages = waterfall(attempted)
    figures = summary(attempted)
    if as_json:
        report = {"requests": len(completions), "concurrency": concurrency, "endings": dict(endings)}
        click.echo(json.dumps(report | figures | {"stages": [stage.as_dict() for stage in stages]}))
        return
    console = Console(highlight=False)
    console.print(_table(stages, figures))
    console.print(f"{len(completions)} requests, {concurrency} at a time: {_counts(endings)}", soft_wrap=True)


def _ending(completion: Completion) -> str:
    if completion.finish_reason is not None:
        return completion.finish_reason
    return completion.error.status.name.lower() if completion.error else "unknown"


def _counts(endings: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in endings.most_common())


def _table(stages: Sequence[Stage], figures: dict[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("stage")
    for percent in PERCENTILES:
        table.add_column(f"p{percent} ms", justify="right")
    table.add_column("share", justify="right")
    table.add_column("")
    table.add_column("meaning", style="dim")
    for stage in stages:
        times = (f"{value:.2f}" for value in stage.percentiles_ms)
        table.add_row(stage.name, *times, f"{stage.share:.1%}", _bar(stage), stage.meaning)
    table.add_section()
    for name, label in (("ttft_ms", "TTFT"), ("total_ms", "whole request"), ("tokens_per_s", "tokens/s")):
        if figures[name]:
            table.add_row(label, *(f"{value:.2f}" for value in figures[name].values()), "", "", "")
    return table


def _bar(stage: Stage) -> str:
    start = round(stage.starts_at * _BAR_WIDTH)
    length = round((stage.starts_at + stage.share) * _BAR_WIDTH) - start
    return " " * start + ("█" * length if length else "▏" if stage.share else "")
