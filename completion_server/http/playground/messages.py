"""The messages of the page, as JSON. Pure; editors/playground/src/messages.ts has the same in TypeScript."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from completion_server.core.errors import CompletionError, InvalidRequestError
from completion_server.core.outcome import AnswerPart, Delta
from completion_server.core.request import Mode, Trigger
from completion_server.http.dialect import Asked, Body, parse, read

_TIMEOUTS_S = {Trigger.EXPLICIT: 15.0, Trigger.AUTOMATIC: 5.0, Trigger.PREFETCH: 5.0}
_TRIGGERS = {each.name.lower(): each for each in Trigger}
_MAX_NUMBER = 2**53 - 1
"""The largest integer that JavaScript has exactly."""
_MAX_TOKEN_CHARACTERS = 16 * 1024
"""As many as fit into the head of a request."""

Number = Annotated[int, Field(ge=1, le=_MAX_NUMBER)]


class Ask(Body):
    """Ask for a completion. Numbers rise on one connection; a newer request supersedes the older one."""

    number: Number
    trigger: Literal["automatic", "explicit", "prefetch"] = "automatic"
    mode: Literal["single_line", "multi_line"] = "single_line"
    uri: str = ""
    language: str = ""
    prefix: str
    suffix: str = ""

    @property
    def kind(self) -> Trigger:
        """The cause of the request."""
        return _TRIGGERS[self.trigger]

    def asked(self) -> Asked:
        """Return the request in the terms that all dialects have."""
        stop = ("\n",) if self.mode == Mode.SINGLE_LINE.value else ()
        timeout_s = _TIMEOUTS_S[self.kind]
        return Asked(self.prefix, self.suffix, self.uri, self.language, stop=stop, timeout_s=timeout_s)


class Cancel(Body):
    """End a request of this connection, if it has not ended."""

    number: Number


class Report(Body):
    """Feedback on an answer. Characters are UTF-16 code units."""

    number: Number
    kind: Literal["shown", "accepted", "accepted_word", "accepted_line", "rejected"]
    characters: Annotated[int, Field(ge=0, le=_MAX_NUMBER)] = 0


class SetK(Body):
    """Set the number of speculative tokens; None lets the server choose. For operators."""

    k: Annotated[int, Field(ge=0, le=1000)] | None


class Simulate(Body):
    """Start or stop the simulated editors. For operators."""

    on: bool


class Token(Body):
    """The token of the page's user, first of all messages; a newer one may follow."""

    token: Annotated[str, Field(min_length=1, max_length=_MAX_TOKEN_CHARACTERS, repr=False)]


PageMessage = Ask | Cancel | Report | SetK | Simulate | Token
_KINDS: Mapping[str, type[PageMessage]] = {
    "ask": Ask,
    "cancel": Cancel,
    "report": Report,
    "set_k": SetK,
    "simulate": Simulate,
    "token": Token,
}


def message_of(data: str) -> PageMessage:
    """Return a message of the page.

    Raises:
        InvalidRequestError: it is none.

    """
    body = parse(data.encode())
    kind = body.get("type")
    found = _KINDS.get(kind) if isinstance(kind, str) else None
    if found is None:
        raise InvalidRequestError("type", f"must be one of {', '.join(_KINDS)}")
    message: PageMessage = read(found, body)
    return message


def part_of(number: int, part: AnswerPart) -> dict[str, Any]:
    """Return a part of an answer."""
    if isinstance(part, Delta):
        return {"type": "text", "number": number, "text": part.text}
    outcome, usage, timings = part.outcome, part.usage.of_answer, part.timings
    return {
        "type": "end",
        "number": number,
        "text": part.text,
        "reason": outcome.reason.value,
        "shed_reason": outcome.shed_reason.value if outcome.shed_reason else "",
        "retry_after_ms": outcome.retry_after_ms,
        "error": outcome.error.message if outcome.error else "",
        "queue_ms": timings.queue_ms,
        "tokenise_ms": timings.tokenise_ms,
        "prefill_ms": timings.prefill_ms,
        "decode_ms": timings.decode_ms,
        "total_ms": timings.total_ms,
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cache": usage.cache_level.value,
    }


def failure_of(number: int, error: CompletionError) -> dict[str, Any]:
    """Return the end of a request that was refused."""
    return {
        "type": "end",
        "number": number,
        "text": "",
        "reason": "error",
        "retry_after_ms": error.retry_after_ms,
        "error": error.message,
    }


def sign_in_of(reason: str) -> dict[str, Any]:
    """Return the question for a token. With a reason the last one is of no use."""
    return {"type": "sign_in", "reason": reason}


def note_of(text: str) -> dict[str, Any]:
    """Return a word to the user about an action that was refused or failed."""
    return {"type": "note", "text": text}
