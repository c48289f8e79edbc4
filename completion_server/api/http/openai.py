"""OpenAI's completions, and Codestral's fill-in-the-middle completions. Pure."""

from dataclasses import asdict, replace
from typing import Annotated

from pydantic import Field

from completion_server.api.http.dialect import DONE, Answer, Asked, Body, Dialect, Json, Reply, Seed, Stops, read
from completion_server.api.http.markers import take_apart, without_markers
from completion_server.core.errors import Code, CompletionError, InvalidRequestError

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
    filepath: str = ""
    """The document's path, likewise."""


def _reply(body: _OpenAiBody, *, is_chat: bool) -> Reply:
    """Return the writer of an answer; with `is_chat` each choice has a message, and a stream ends with its tokens."""
    names = ("chat.completion", "chat.completion.chunk") if is_chat else ("text_completion", "text_completion")
    options = body.stream_options

    def document(answer: Answer, text: str, reason: str | None, *, is_chunk: bool = True) -> dict[str, Json]:
        content: Json = {"text": text, "logprobs": None}
        if is_chat:
            content = {"delta" if is_chunk else "message": {"role": "assistant", "content": text}}
        return {
            "id": f"cmpl-{answer.number}",
            "object": names[is_chunk],
            "created": answer.created_s,
            "model": answer.model,
            "choices": [{"index": 0, **content, "finish_reason": reason}],
        }

    def whole(answer: Answer) -> Json:
        return document(answer, answer.text, finish_reason(answer), is_chunk=False) | {"usage": usage(answer)}

    def last(answer: Answer) -> list[Json]:
        end = document(answer, "", finish_reason(answer))
        if not (is_chat or options.include_usage):
            return [end, DONE]
        timings = {"timings": asdict(answer.end.timings)} if options.include_timings and not is_chat else {}
        return [end, end | {"choices": [], "usage": usage(answer)} | timings, DONE]

    return Reply(body.stream, whole, lambda answer: document(answer, answer.text, None), last)


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
        document_uri=body.filepath,
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
        document_uri=parts.document_uri or asked.document_uri,
        snippets=parts.snippets[::-1],  # the most relevant file stands next to the edited one
    )


def translate(body: dict[str, Json]) -> tuple[Asked, Reply]:
    """Return a request to `/v1/completions`. Without a suffix, be it an empty one, the prompt may have markers."""
    fields = read(_OpenAiBody, body)
    asked = _asked(fields)
    asked = from_prompt(asked) if fields.suffix is None else asked
    return asked, _reply(fields, is_chat=False)


def translate_fim(body: dict[str, Json]) -> tuple[Asked, Reply]:
    """Return a request to `/v1/fim/completions`."""
    fields = read(_OpenAiBody, body)
    return _asked(fields), _reply(fields, is_chat=True)


OPENAI = Dialect(translate, error_body)
CODESTRAL = Dialect(translate_fim, error_body)


def models(model: str, created_s: int) -> Json:
    """Return the answer to GET `/v1/models`."""
    return {"object": "list", "data": [{"id": model, "object": "model", "created": created_s, "owned_by": "local"}]}
