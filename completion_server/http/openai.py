"""OpenAI's completions, and Codestral's fill-in-the-middle completions. Pure."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Annotated

from pydantic import Field

from completion_server.core.errors import Code, CompletionError, InvalidRequestError
from completion_server.http.dialect import DONE, Answer, Asked, Body, Dialect, Json, Reply, Seed, Stops, read
from completion_server.http.markers import take_apart, without_markers

_ERROR_TYPES = {
    Code.INVALID_ARGUMENT: "invalid_request_error",
    Code.FAILED_PRECONDITION: "invalid_request_error",
    Code.UNAUTHENTICATED: "authentication_error",
    Code.PERMISSION_DENIED: "permission_error",
    Code.RESOURCE_EXHAUSTED: "rate_limit_error",
}


class _StreamOptions(Body):
    include_usage: bool = False
    include_timings: bool = False
    """Whether the event about tokens also has the milliseconds of each stage, an option of this server alone."""


class _OpenAiBody(Body):
    prompt: str | Annotated[list[str], Field(min_length=1, max_length=1)]
    suffix: str | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    temperature: float | None = None
    seed: Seed = None
    random_seed: Seed = None
    """Codestral's name for it."""
    stop: Stops = ()
    stream: bool = False
    stream_options: _StreamOptions = _StreamOptions()
    n: int = 1
    echo: bool = False
    user: str = ""
    language: str = ""
    """The language's id, which the server's own page sends, as Tabby's clients do."""


@dataclass(frozen=True, slots=True)
class _OpenAiReply:
    """An answer in the form of OpenAI's completions, or with a message in each choice, as Codestral's has."""

    is_streamed: bool
    has_usage: bool
    """Whether a stream ends with an event about tokens."""
    has_timings: bool = False
    name: str = "text_completion"
    chunk_name: str = "text_completion"
    choice: Callable[[str, bool], dict[str, Json]] = lambda text, _is_chunk: {"text": text, "logprobs": None}
    """Returns a choice with a text; the second argument is whether it is part of a stream."""

    def whole(self, answer: Answer) -> Json:
        """See `Reply`."""
        choices = [self._choice(answer.text, finish_reason(answer), is_chunk=False)]
        return {**self._head(answer, self.name), "choices": choices, "usage": usage(answer)}

    def piece(self, answer: Answer) -> Json:
        """See `Reply`."""
        return {**self._head(answer, self.chunk_name), "choices": [self._choice(answer.text, None, is_chunk=True)]}

    def last(self, answer: Answer) -> list[Json]:
        """See `Reply`."""
        head = self._head(answer, self.chunk_name)
        events = [{**head, "choices": [self._choice("", finish_reason(answer), is_chunk=True)]}]
        if self.has_usage:
            timings = {"timings": asdict(answer.end.timings)} if self.has_timings else {}
            events.append({**head, "choices": [], "usage": usage(answer), **timings})
        return [*events, DONE]

    def _head(self, answer: Answer, name: str) -> dict[str, Json]:
        return {
            "id": f"cmpl-{answer.number}",
            "object": name,
            "created": answer.created_s,
            "model": answer.model,
        }

    def _choice(self, text: str, reason: str | None, *, is_chunk: bool) -> dict[str, Json]:
        return {"index": 0, **self.choice(text, is_chunk), "finish_reason": reason}


def finish_reason(answer: Answer) -> str:
    """Return why an answer ended, in OpenAI's words, which have none for a request that was shed or superseded."""
    return "length" if answer.is_cut else "stop"


def usage(answer: Answer) -> dict[str, Json]:
    """Return the tokens of an answer, in OpenAI's words."""
    found = answer.end.usage.of_answer
    return {
        "prompt_tokens": found.prompt_tokens,
        "completion_tokens": found.completion_tokens,
        "total_tokens": found.prompt_tokens + found.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": found.cached_prompt_tokens},
    }


def error_body(_status: int, error: CompletionError) -> Json:
    """Return the body of an error in OpenAI's form."""
    param = error.violations[0].field if error.violations else None
    kind = _ERROR_TYPES.get(error.code, "server_error")
    return {"error": {"message": error.message, "type": kind, "param": param, "code": error.reason or None}}


def _fim_choice(text: str, is_chunk: bool) -> dict[str, Json]:
    return {"delta" if is_chunk else "message": {"role": "assistant", "content": text}}


def _asked(body: _OpenAiBody) -> Asked:
    """Return what a body asks for."""
    if body.n != 1:
        raise InvalidRequestError("n", f"must be 1, got {body.n}")
    if body.echo:
        raise InvalidRequestError("echo", "must be false, got true")
    prompt = body.prompt if isinstance(body.prompt, str) else body.prompt[0]
    return Asked(
        prompt,
        body.suffix or "",
        language_id=body.language,
        max_tokens=body.max_tokens or None,
        temperature=body.temperature,
        seed=body.random_seed if body.seed is None else body.seed,
        stop=without_markers(body.stop),
        user=body.user,
        is_warm_up=body.max_tokens == 0,
    )


def from_prompt(asked: Asked) -> Asked:
    """Return a request whose prefix is a raw prompt with its parts in their places."""
    parts = take_apart(asked.prefix)
    return replace(
        asked,
        prefix=parts.prefix,
        suffix=parts.suffix,
        document_uri=parts.document_uri,
        snippets=parts.snippets[::-1],  # the most relevant file stands next to the edited one
    )


def translate(body: dict[str, Json]) -> tuple[Asked, Reply]:
    """Return a request to `/v1/completions`. Without a suffix, be it an empty one, the prompt may have markers."""
    fields = read(_OpenAiBody, body)
    asked = _asked(fields)
    asked = from_prompt(asked) if fields.suffix is None else asked
    options = fields.stream_options
    return asked, _OpenAiReply(fields.stream, options.include_usage, options.include_timings)


def translate_fim(body: dict[str, Json]) -> tuple[Asked, Reply]:
    """Return a request to `/v1/fim/completions`."""
    fields = read(_OpenAiBody, body)
    names = "chat.completion", "chat.completion.chunk"
    return _asked(fields), _OpenAiReply(fields.stream, True, False, *names, _fim_choice)


OPENAI = Dialect(translate, error_body)
CODESTRAL = Dialect(translate_fim, error_body)


def models(model: str, created_s: int) -> Json:
    """Return the answer to GET `/v1/models`."""
    return {"object": "list", "data": [{"id": model, "object": "model", "created": created_s, "owned_by": "local"}]}
