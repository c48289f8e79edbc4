"""The dialect of llama.cpp's server, as llama.vim and llama.vscode speak it. Pure."""

import math
from typing import Annotated

from pydantic import Field

from completion_server.api.http.dialect import MANY, Answer, Asked, Body, Dialect, Json, Reply, Seed, Stops, read
from completion_server.api.http.markers import without_markers
from completion_server.api.http.openai import from_prompt
from completion_server.core.errors import Code, CompletionError
from completion_server.core.request import Snippet

_MS_PER_S = 1000
_ERROR_TYPES = {
    Code.UNAUTHENTICATED: "authentication_error",
    Code.PERMISSION_DENIED: "permission_error",
    Code.UNAVAILABLE: "unavailable_error",
    Code.RESOURCE_EXHAUSTED: "unavailable_error",
    Code.INTERNAL: "server_error",
}


class _Extra(Body):
    text: str
    filename: str = ""


class _LlamaBody(Body):
    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: Annotated[tuple[_Extra, ...], MANY] = ()
    prompt: str = ""
    n_predict: int | None = None
    n_cmpl: Annotated[int, Field(ge=1)] = 1
    temperature: float | None = None
    seed: Seed = None
    stop: Stops = ()
    stream: bool = False
    t_max_prompt_ms: float | None = None
    t_max_predict_ms: float | None = None
    response_fields: Annotated[tuple[str, ...], MANY] = ()
    """The paths to answer, such as "timings/predicted_ms"; all if there are none."""


class _PromptBody(_LlamaBody):
    prompt: str


def _reply(body: _LlamaBody) -> Reply:
    def whole(answer: Answer) -> Json:
        found = _document(answer)
        if body.response_fields:
            found = {path: value for path in body.response_fields if (value := _value_at(found, path)) is not None}
        return [found] if body.n_cmpl > 1 else found  # several answers would be alike, so the array has one

    def piece(answer: Answer) -> Json:
        return {"index": 0, "content": answer.text, "tokens": [], "stop": False, "id_slot": 0}

    return Reply(body.stream, whole, piece, lambda answer: [_document(answer) | {"content": ""}])


def _document(answer: Answer) -> dict[str, Json]:
    usage, timings = answer.end.usage.of_answer, answer.end.timings
    num_new = max(0, usage.prompt_tokens - usage.cached_prompt_tokens)
    return {
        "index": 0,
        "content": answer.text,
        "tokens": [],
        "id_slot": 0,
        "stop": True,
        "model": answer.model,
        "tokens_predicted": usage.completion_tokens,
        "tokens_evaluated": usage.prompt_tokens,
        "tokens_cached": usage.cached_prompt_tokens,
        "has_new_line": "\n" in answer.text,
        "truncated": False,  # the context never ends an answer
        "stop_type": "limit" if answer.is_cut else "eos",
        "stopping_word": "",
        "timings": {
            "cache_n": usage.cached_prompt_tokens,
            "prompt_n": num_new,
            "prompt_ms": timings.prefill_ms,
            "prompt_per_token_ms": _ratio(timings.prefill_ms, num_new),
            "prompt_per_second": _ratio(num_new * _MS_PER_S, timings.prefill_ms),
            "predicted_n": usage.completion_tokens,
            "predicted_ms": timings.decode_ms,
            "predicted_per_token_ms": _ratio(timings.decode_ms, usage.completion_tokens),
            "predicted_per_second": _ratio(usage.completion_tokens * _MS_PER_S, timings.decode_ms),
        },
    }


def _ratio(amount: float, parts: float) -> float:
    return amount / parts if parts else 0.0


def _value_at(document: Json, path: str) -> Json:
    """Return the value at a path, None if there is none."""
    for name in path.split("/"):
        document = document.get(name) if isinstance(document, dict) else None
    return document


def _asked(body: _LlamaBody) -> Asked:
    """Return what a body asks for. A limit of 0 ms or less is none; the sum of those that are set is the deadline.

    Plugins append to `input_extra`, so its last entry is the most relevant.
    """
    limits_ms = [each for each in (body.t_max_prompt_ms, body.t_max_predict_ms) if each is not None and each > 0]
    return Asked(
        body.input_prefix + body.prompt,
        body.input_suffix,
        snippets=tuple(Snippet(each.filename, each.text) for each in reversed(body.input_extra)),
        max_tokens=body.n_predict if body.n_predict is not None and body.n_predict > 0 else None,
        temperature=body.temperature,
        seed=body.seed,
        stop=without_markers(body.stop),
        timeout_s=sum(limits_ms) / _MS_PER_S if limits_ms else math.inf,
        is_warm_up=body.n_predict == 0,
    )


def translate_infill(body: dict[str, Json]) -> tuple[Asked, Reply]:
    """Return a request to `/infill`."""
    fields = read(_LlamaBody, body)
    return _asked(fields), _reply(fields)


def translate_completion(body: dict[str, Json]) -> tuple[Asked, Reply]:
    """Return a request to `/completion`, whose prompt may have markers."""
    fields = read(_PromptBody, body)
    return from_prompt(_asked(fields)), _reply(fields)


def error_body(status: int, error: CompletionError) -> Json:
    """Return the body of an error in llama.cpp's form."""
    kind = _ERROR_TYPES.get(error.code, "invalid_request_error")
    return {"error": {"code": status, "message": error.message, "type": kind}}


INFILL = Dialect(translate_infill, error_body, fails_unused=True)
COMPLETION = Dialect(translate_completion, error_body, fails_unused=True)


def props(model: str, max_model_len: int, max_slots: int, version: str) -> Json:
    """Return the answer to GET `/props`."""
    return {
        "default_generation_settings": {"n_ctx": max_model_len, "id": 0, "is_processing": False},
        "total_slots": max_slots,
        "model_alias": model,
        "model_path": model,
        "modalities": {"vision": False, "audio": False},
        "build_info": f"completion-server {version}",
    }
