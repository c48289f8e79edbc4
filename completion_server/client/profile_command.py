"""The `profile` command: sends many requests and shows the time of each stage."""

import itertools
import json
import math
import random
import sysconfig
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import grpc
from rich.console import Console
from rich.progress import track
from rich.table import Table

from completion.v1 import completion_pb2 as pb
from completion_client import Completion, Endpoint, blocking
from completion_client.blocking import open_in_order
from completion_client.endpoint import caller_metadata
from completion_server.client.cursor import Cursor, Position, PositionError, read_text, split_text, uri_of
from completion_server.client.options import fail, server_options

_BAR_WIDTH = 28
_WARM_UP = 3
_ATTEMPTED = (pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH)

_MAX_BYTES = 200_000
_MIN_LINES = 20

PERCENTILES = (50, 95, 99)
_PIPE_WIDTH = 120
"""Width of the table without a terminal; it would be cut at 80."""


def standard_library() -> list[Path]:
    """Return the Python standard library's own modules, in a fixed order."""
    return sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))


def samples(files: Sequence[Path], seed: int) -> Iterator[tuple[str, Cursor]]:
    """Yield endless URIs of files with positions within lines of code, the same for the same files and seed.

    Raises PositionError if a file can't be read, or no file has enough text.
    """
    texts = [(file, text) for file, text in ((file, _text(file)) for file in files) if text.count("\n") >= _MIN_LINES]
    if not texts:
        msg = f"none of {len(files)} files holds {_MIN_LINES} lines of text in at most {_MAX_BYTES} bytes"
        raise PositionError(msg)
    chance = random.Random(seed)
    while True:
        file, text = chance.choice(texts)
        lines = text.split("\n")
        line = chance.randrange(_MIN_LINES // 2, len(lines))
        if lines[line].strip():
            indent = len(lines[line]) - len(lines[line].lstrip())
            column = chance.randint(indent + 1, len(lines[line].rstrip()) + 1)
            yield uri_of(str(file)), split_text(text, Position(str(file), line + 1, column))


def _text(file: Path) -> str:
    return read_text(str(file)) if file.stat().st_size <= _MAX_BYTES else ""


_STAGES = {
    "network": "to the server and back, measured by the client",
    "admission": "checks, scheduling and streaming in the server",
    "queue": "waiting for a slot",
    "tokenise": "building the prompt's tokens",
    "prefill": "from the engine's receipt to its first token",
    "first decode": "from the first text to the next",
    "decode": "from there to the last token",
}
"""The stages in their order, and what each means."""


def stage_times_ms(completion: Completion) -> tuple[float, ...]:
    """Split a completion's time over the stages, in their order; the parts add up to the whole.

    The server's clock gives queue, tokenise, prefill and decode. The rest of the server's time is admission; the time
    that the client waited beyond the server's is network. The client measures the first decode step, which is therefore
    limited to decode.
    """
    if completion.end is None:
        msg = "a completion without an End has no stages"
        raise ValueError(msg)
    times = completion.end.timings
    first_ms, *later_ms = (*completion.text_times_ms, completion.total_ms)
    first_step_ms = min(later_ms[0] - first_ms if later_ms else 0.0, times.decode_ms)
    inside_ms = times.queue_ms + times.tokenise_ms + times.prefill_ms + times.decode_ms
    server_ms = max(times.total_ms, inside_ms)
    return (
        max(0.0, completion.total_ms - server_ms),
        server_ms - inside_ms,
        times.queue_ms,
        times.tokenise_ms,
        times.prefill_ms,
        first_step_ms,
        times.decode_ms - first_step_ms,
    )


def percentiles(values: Sequence[float]) -> tuple[float, ...]:
    """Return PERCENTILES of at least one value, by nearest rank: each is one of the values."""
    ranked = sorted(values)
    return tuple(ranked[max(0, math.ceil(len(ranked) * percent / 100) - 1)] for percent in PERCENTILES)


def figures_of(completions: Sequence[Completion]) -> dict[str, dict[str, float] | None]:
    """Return TTFT, total and rate over all completions, in percentiles."""
    columns = {
        "ttft_ms": [each.ttft_ms for each in completions if each.ttft_ms is not None],
        "total_ms": [each.total_ms for each in completions],
        "tokens_per_s": [each.tokens_per_s for each in completions if each.tokens_per_s is not None],
    }
    return {name: _named(percentiles(values)) if values else None for name, values in columns.items()}


def stages_of(completions: Sequence[Completion]) -> list[dict[str, Any]]:
    """Return each stage's percentiles in milliseconds, and its share of the time of at least one ended completion."""
    columns = list(zip(*map(stage_times_ms, completions), strict=True))
    whole = math.fsum(map(math.fsum, columns)) or 1.0
    return [
        {"stage": name, **_named(percentiles(column)), "share": round(math.fsum(column) / whole, 4)}
        for name, column in zip(_STAGES, columns, strict=True)
    ]


def _named(values: Sequence[float]) -> dict[str, float]:
    return {f"p{percent}": round(value, 3) for percent, value in zip(PERCENTILES, values, strict=True)}


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
    endpoints: Sequence[Endpoint],
    files: tuple[Path, ...],
    seed: int,
    as_json: bool,
    **options: Any,  # noqa: ANN401 - fields of the requests
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
    channel: grpc.Channel, endpoint: Endpoint, positions: Sequence[tuple[str, Cursor]], options: Mapping[str, Any]
) -> list[Completion]:
    """Send every request. The first ones warm the connection up and are not returned."""
    timeout_s = options["timeout_ms"] / 1000
    reached = blocking.connect(channel, timeout_s)
    run = f"profile-{uuid.uuid4().hex[:8]}"

    def one(numbered: tuple[int, tuple[str, Cursor]]) -> Completion:
        number, (uri, cursor) = numbered
        request = pb.CompleteRequest(
            session_id=f"{run}-{number}",
            sequence=1,
            document_uri=uri,
            prefix=cursor.prefix,
            suffix=cursor.suffix,
            trigger=pb.TRIGGER_AUTOMATIC,
            mode=pb.MODE_MULTI_LINE if options["mode"] == "multi" else pb.MODE_SINGLE_LINE,
            max_tokens=options["max_tokens"] or 0,
            without_completion_cache=True,
        )
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


def _report(completions: Sequence[Completion], concurrency: int, as_json: bool) -> None:
    attempted = [each for each in completions if each.end and each.end.finish_reason in _ATTEMPTED]
    endings = Counter(_ending(each) for each in completions)
    if not attempted:
        click.echo(f"Error: none of {len(completions)} requests was answered: {_counts(endings)}", err=True)
        raise click.exceptions.Exit(1)
    stages, figures = stages_of(attempted), figures_of(attempted)
    if as_json:
        report = {"requests": len(completions), "concurrency": concurrency, "endings": dict(endings)}
        click.echo(json.dumps(report | figures | {"stages": stages}))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    console.print(_table(stages, figures))
    console.print(f"{len(completions)} requests, {concurrency} at a time: {_counts(endings)}", soft_wrap=True)


def _ending(completion: Completion) -> str:
    if completion.finish_reason is not None:
        return completion.finish_reason
    return completion.error.status.name.lower() if completion.error else "unknown"


def _counts(endings: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in endings.most_common())


def _table(stages: Sequence[dict[str, Any]], figures: Mapping[str, dict[str, float] | None]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("stage")
    for name in (*(f"p{percent} ms" for percent in PERCENTILES), "share"):
        table.add_column(name, justify="right")
    table.add_column("")
    table.add_column("meaning", style="dim")
    begin = 0.0
    for stage in stages:
        end = begin + stage["share"]
        times = (f"{stage[f'p{percent}']:.2f}" for percent in PERCENTILES)
        name = stage["stage"]
        table.add_row(name, *times, f"{stage['share']:.1%}", _bar(begin, end), _STAGES[name])
        begin = end
    table.add_section()
    for name, label in (("ttft_ms", "TTFT"), ("total_ms", "whole request"), ("tokens_per_s", "tokens/s")):
        table.add_row(label, *(f"{value:.2f}" for value in (figures[name] or {}).values()), "", "", "")
    return table


def _bar(begin: float, end: float) -> str:
    start, length = round(begin * _BAR_WIDTH), round(end * _BAR_WIDTH) - round(begin * _BAR_WIDTH)
    return " " * start + ("█" * length if length else "▏" if end > begin else "")
