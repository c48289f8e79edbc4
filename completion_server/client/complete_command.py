"""The `complete` command: streams one completion to the terminal."""

import json
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import click
from rich.console import Console

from completion.v1 import completion_pb2 as pb
from completion_client import Completion, Endpoint, RegionSettings, UnavailableError, blocking
from completion_client.blocking import Contender, open_in_order
from completion_client.endpoint import Metadata, caller_metadata
from completion_server.client.cursor import STDIN, Cursor, PositionError, parse_position, read_text, split_text, uri_of
from completion_server.client.options import fail, server_options
from completion_server.client.output import CompletionView, completion_dict, footer, rounded

_LEAST_S = 0.001
_MODES = {"single": pb.MODE_SINGLE_LINE, "multi": pb.MODE_MULTI_LINE}


class _Complete(click.Command):
    """Explains that a position in standard input looks like an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)  # click empties the list
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name.startswith(f"{STDIN}:"):
                position = next((arg for arg in given if arg.startswith(f"{STDIN}:")), error.option_name)
                msg = f"to complete standard input at a line, write: {ctx.info_name} -- {position}"
                raise click.UsageError(msg, ctx) from error
            raise


@click.command(cls=_Complete)
@click.argument("position", metavar="FILE[:LINE[:COL]]")
@server_options
@click.option("--mode", type=click.Choice(list(_MODES)), default="single", show_default=True, help="A line or a block.")
@click.option("--max-tokens", type=click.IntRange(1), help="Upper limit of tokens; the server's default if not given.")
@click.option("--temperature", type=click.FloatRange(0), help="0 is greedy.")
@click.option("--seed", type=click.IntRange(0), help="Makes sampling repeatable.")
@click.option("--no-speculation", is_flag=True, help="Use no draft model for this request.")
@click.option("--no-cache", is_flag=True, help="Have the engine compute the answer: use no completion cache.")
@click.option("--stop", multiple=True, help="A string that ends the completion. May be given more than once.")
@click.option("--timeout-ms", type=click.IntRange(1), default=10_000, show_default=True, help="The request's deadline.")
@click.option("--user", help="The request's user; a newer request of the same user supersedes it.")
@click.option("--session", help="The editor session's name; a fresh one if not given.")
@click.option("--language", help='The language, such as "python"; else the server takes it from the file\'s name.')
@click.option("--verbose", "-v", is_flag=True, help="Say which servers were measured and which one answered.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def complete(
    endpoints: Sequence[Endpoint],
    position: str,
    timeout_ms: int,
    user: str | None,
    verbose: bool,
    as_json: bool,
    **options: Any,  # noqa: ANN401 - fields of the request
) -> None:
    """Stream the completion at a cursor position in a file to the terminal.

    Of several servers the nearest is asked; of several that are equally near the user's own, as the client library
    chooses it. The next one is asked if it can't be reached or refuses.

    Lines and columns count from 1. Without COL the cursor is at the end of the line. Without LINE the cursor is at the
    end of the text. "-" as FILE reads standard input; with a line, write "-- -:LINE". A pipe gets the completion alone;
    times and token counts go to stderr.

    The exit status is 0 if the server answered, even without text; 1 if it could not be reached or failed; 2 if
    FILE:LINE:COL does not exist.

    \b
    Examples:
      completion-server complete app.py:12
      completion-server complete app.py:12:17 --mode multi --max-tokens 64
      printf 'if __name__ == ' | completion-server complete - --language python
    """
    file, cursor = _read_cursor(position)
    request = _request(file, cursor, options)
    view = CompletionView(Console(highlight=False), cursor, is_silent=as_json)
    ends_at_s = time.monotonic() + timeout_ms / 1000
    with open_in_order(endpoints, user or request.session_id, settings=_race(timeout_ms / 1000)) as contenders:
        for each in contenders if verbose else ():
            measured = "not measured" if each.round_trip_ms is None else f"{each.round_trip_ms:.1f} ms away"
            click.echo(f"{each.endpoint.address} {measured}", err=True)
        contender, completion, reached = _ask_in_order(contenders, request, ends_at_s, user, view)
    endpoint = contender.endpoint
    if verbose:
        click.echo(f"asked {endpoint.address}", err=True)
    if as_json:
        about = {"server": endpoint.address, "round_trip_ms": rounded(contender.round_trip_ms)}
        place = {"file": file, "line": cursor.line, "column": cursor.column}
        click.echo(json.dumps(completion_dict(completion) | about | place))
    if completion.error:
        fail(completion.error, endpoint, reached=reached)
    if not as_json:
        Console(stderr=True, highlight=False).print(footer(completion), soft_wrap=True)


def _read_cursor(position: str) -> tuple[str, Cursor]:
    try:
        parsed = parse_position(position)
        standard_input = sys.stdin.buffer.read() if parsed.file == STDIN else None
        return parsed.file, split_text(read_text(parsed.file, standard_input), parsed)
    except PositionError as error:
        raise click.UsageError(str(error)) from error


def _request(file: str, cursor: Cursor, options: Mapping[str, Any]) -> pb.CompleteRequest:
    return pb.CompleteRequest(
        session_id=options["session"] or f"cli-{uuid.uuid4().hex[:12]}",
        sequence=1,
        document_uri=uri_of(file),
        language_id=options["language"] or "",
        prefix=cursor.prefix,
        suffix=cursor.suffix,
        trigger=pb.TRIGGER_EXPLICIT,
        mode=_MODES[options["mode"]],
        max_tokens=options["max_tokens"] or 0,
        temperature=options["temperature"],
        seed=options["seed"],
        stop=options["stop"],
        without_speculation=options["no_speculation"],
        without_completion_cache=options["no_cache"],
    )


def _race(timeout_s: float) -> RegionSettings:
    """Return settings whose race leaves half of the time to the request."""
    settings = RegionSettings()
    return replace(settings, race_s=min(settings.race_s, timeout_s / 2))


def _ask_in_order(
    contenders: Sequence[Contender],
    request: pb.CompleteRequest,
    ends_at_s: float,
    user: str | None,
    view: CompletionView,
) -> tuple[Contender, Completion, bool]:
    """Ask one server after another until one can be used; return also whether it was reached.

    A server has half of the time that is left to connect, the last one all of it. One that is reached may be slow: it
    has all of the time for its answer.
    """
    for contender in contenders:
        left_s = ends_at_s - time.monotonic()
        connects_by_s = ends_at_s - (0.0 if contender is contenders[-1] else left_s / 2)
        completion, reached = _complete(contender, request, connects_by_s, ends_at_s, caller_metadata(user), view)
        is_unusable = not completion.text and (isinstance(completion.error, UnavailableError) or not reached)
        if not is_unusable or time.monotonic() >= ends_at_s:
            break
    return contender, completion, reached


def _complete(
    contender: Contender,
    request: pb.CompleteRequest,
    connects_by_s: float,
    ends_at_s: float,
    metadata: Metadata,
    view: CompletionView,
) -> tuple[Completion, bool]:
    """Return the completion and whether there was a connection."""
    channel = contender.channel
    reached = blocking.connect(channel, max(_LEAST_S, connects_by_s - time.monotonic()))
    if reached:
        view.begin()
    # Without a connection this call fails, too, and says why.
    left_s = max(_LEAST_S, (ends_at_s if reached else connects_by_s) - time.monotonic())
    completion = blocking.complete(channel, request, timeout_s=left_s, metadata=metadata, on_text=view.add)
    if reached:
        view.finish()
    return completion, reached
