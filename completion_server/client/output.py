"""Shows completions, errors and answers: on a terminal, in a pipe, and as JSON under the contract's own names."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from rich.console import Console
from rich.table import Table
from rich.text import Text

from completion.v1 import admin_pb2
from completion.v1 import completion_pb2 as pb
from completion_client import Completion, ServiceError, TokenError
from completion_client.token_sources import VARIABLE
from completion_server.client.cursor import Cursor

# A model may write escape sequences, which must not control the user's terminal.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

_ONLY_CERTIFICATE = re.compile(r"^(?!.*(?:API key|token)).*certificate")
"""A refusal for which no token is a remedy."""

_NO_TEXT = {
    "stop": "the model has nothing to add here",
    "length": "the model wrote nothing that can be shown",
    "superseded": "a newer request of the same user superseded it",
    "shed": "the server did not attempt it",
    "cancelled": "it was cancelled",
}

_NO_SERVER = "Start one with: completion-server serve --config FILE; or name another address."

_MAX_CAUSE_CHARS = 120


class CompletionView:
    """Shows one completion while it arrives: within its line on a terminal, alone in a pipe."""

    def __init__(self, console: Console, cursor: Cursor, *, is_silent: bool = False) -> None:
        """Show nothing yet. A silent view never shows anything."""
        self._console = console
        self._cursor = cursor
        self._is_silent = is_silent
        self._is_terminal = console.is_terminal and not is_silent

    def begin(self) -> None:
        """Show the cursor's line up to the cursor."""
        if self._is_terminal:
            self._console.out(printable(self._cursor.left), style="dim", highlight=False, end="")

    def add(self, text: str) -> None:
        """Show a piece of the completion."""
        if self._is_terminal:
            self._console.out(printable(text), style="bold green", highlight=False, end="")
        elif not self._is_silent:
            self._console.file.write(text)
            self._console.file.flush()

    def finish(self) -> None:
        """Show the text right of the cursor and end the line."""
        if self._is_terminal:
            self._console.out(printable(self._cursor.right), style="dim", highlight=False)


def printable(text: str) -> str:
    """Return the text with control characters other than tab and newline made visible."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def footer(completion: Completion) -> Text:
    """Return one line with the times and tokens of a completion, "" if it has no End."""
    if completion.end is None:
        return Text()
    usage = completion.end.usage
    parts = [
        f"TTFT {completion.ttft_ms:.1f} ms" if completion.ttft_ms is not None else "no text",
        f"{completion.tokens_per_s:.0f} tokens/s" if completion.tokens_per_s is not None else "",
        f"{completion.total_ms:.1f} ms in all",
        completion.finish_reason or "",
        f"from the {completion.cache_level} cache" if completion.cache_level else "",
        f"{usage.completion_tokens} tokens",
        f"prompt {usage.prompt_tokens} ({usage.cached_prompt_tokens} cached)",
        f"draft {usage.drafted_tokens} ({usage.accepted_draft_tokens} accepted)"
        if usage.drafted_tokens
        else "no draft",
    ]
    line = Text(" · ".join(part for part in parts if part), style="dim")
    return line if completion.text else line.append(f"\n{_why_empty(completion, completion.end)}")


def _why_empty(completion: Completion, end: pb.End) -> str:
    """Return a sentence for a completion without text."""
    reason = completion.finish_reason or ""
    why = f"No completion: {_NO_TEXT.get(reason, reason)}"
    if completion.shed_reason:
        why += f" ({completion.shed_reason.replace('_', ' ')})"
    if completion.limit:
        why += f"; the limit is {completion.limit.name} = {completion.limit.allowed:.15g}"
    if end.HasField("retry_after_ms"):
        why += f"; ask again in {end.retry_after_ms} ms"
    return why + "."


def completion_dict(completion: Completion) -> dict[str, Any]:
    """Return a completion with its usage, times and error."""
    end = completion.end or pb.End()
    return {
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "shed_reason": completion.shed_reason,
        "retry_after_ms": end.retry_after_ms if end.HasField("retry_after_ms") else None,
        "limit": completion.limit._asdict() if completion.limit else None,
        "cache_level": completion.cache_level,
        "usage": plain(end.usage),
        "timings": plain(end.timings),
        "ttft_ms": rounded(completion.ttft_ms),
        "tokens_per_s": rounded(completion.tokens_per_s),
        "total_ms": rounded(completion.total_ms),
        "error": _error(completion.error) if completion.error else None,
    }


def _error(error: ServiceError) -> dict[str, Any]:
    return {
        "code": error.status.name,
        "message": error.message,
        "reason": error.reason or None,
        "retry_after_ms": error.retry_after_ms,
        "limit": error.limit._asdict() if error.limit else None,
        "field_violations": [each._asdict() for each in error.violations],
    }


def plain(message: Message) -> dict[str, Any]:
    """Return a message as a dictionary under the contract's names, with its default values."""
    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def rows_table(rows: Iterable[tuple[str, str]], styles: Mapping[str, str] | None = None) -> Table:
    """Return a table of names and values; `styles` are those of rows by their names."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column()
    for name, value in rows:
        table.add_row(name, value, style=(styles or {}).get(name, ""))
    return table


def engine_state(status: admin_pb2.GetStatusResponse) -> str:
    """Return the state of the engine in one word."""
    return admin_pb2.EngineState.Name(status.engine_state).removeprefix("ENGINE_STATE_").lower()


def rounded(value: float | None) -> float | None:
    """Return a time or a rate with three digits."""
    return None if value is None else round(value, 3)


def explain(error: ServiceError, address: str, *, reached: bool = True) -> str:
    """Return a sentence with the error and its remedy; `reached` says whether there was a connection at all."""
    if not reached and error.status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"{address} did not connect within the time that it had. Allow it more with --timeout-ms."
    if not reached:
        cause = error.message.rstrip(".; )]").rsplit(": ", 1)[-1][:_MAX_CAUSE_CHARS]  # the last of gRPC's long message
        return f"No server answers at {address} ({cause}). " + _NO_SERVER
    if isinstance(error, TokenError):
        template = "At {address}: {message}."
    elif error.status is grpc.StatusCode.UNAUTHENTICATED and _ONLY_CERTIFICATE.search(error.message):
        template = "The server at {address} wants a certificate that it takes (--tls-cert, --tls-key): {message}."
    else:
        template = "The server at {address} " + _TEMPLATES.get(error.status, "failed: {message} ({status}).")
    faults = "; ".join(f"{each.field}: {each.description}" for each in error.violations) or error.message
    text = template.format(address=address, message=error.message, status=error.status.name, faults=faults)
    return text + (f" Ask again in {_duration(error.retry_after_ms)}." if error.retry_after_ms is not None else "")


def _duration(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.0f} s" if milliseconds >= 1000 else f"{milliseconds} ms"  # noqa: PLR2004


_TEMPLATES = {
    grpc.StatusCode.UNAVAILABLE: "can't answer now: {message}.",
    grpc.StatusCode.INVALID_ARGUMENT: "refused the request: {faults}.",
    grpc.StatusCode.DEADLINE_EXCEEDED: "did not finish in time; allow it more with --timeout-ms.",
    grpc.StatusCode.UNAUTHENTICATED: (
        "wants a token: {message}. Give one with --token-file FILE, --token-command COMMAND or the variable "
        f"{VARIABLE}; its operator makes them."
    ),
    grpc.StatusCode.PERMISSION_DENIED: "does not allow this to you: {message}.",
    grpc.StatusCode.FAILED_PRECONDITION: "can't do this: {message}.",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "is overloaded: {message}.",
    grpc.StatusCode.UNIMPLEMENTED: "does not serve this: {message}. Is it the right port?",
}
