"""The HTTP dialects of completion servers: path, body and the lines of an answer. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from loadtest.targets import TargetError, TargetSpec
from loadtest.targets.record import Outcome, Record
from loadtest.traffic.trace import TypedRequest

_DATA = b"data:"
_DONE = b"[DONE]"


class Dialect(Protocol):
    """A request format and its answer format."""

    @property
    def path(self) -> str:
        """The path of the POST."""
        ...

    def body(self, request: TypedRequest, language_id: str, max_tokens: int) -> dict[str, Any]:
        """Return the body of the POST."""
        ...

    def take(self, line: bytes, record: Record) -> None:
        """Write the content of an answer's line to a record.

        Raises:
            ValueError: the line is not of this dialect. KeyError and TypeError mean the same.

        """
        ...


def dialect_of(spec: TargetSpec) -> Dialect:
    """Return a target's dialect.

    Raises:
        TargetError: one of its options is invalid.

    """
    extra = _extra(spec)
    if spec.kind == "openai+http":
        return OpenAi(spec.options.get("model", ""), _fim(spec), extra)
    return Llama(extra) if spec.kind == "llama+http" else Tabby(extra)


@dataclass(frozen=True, slots=True)
class OpenAi:
    """The OpenAI completions API, streaming, as `vllm serve` and many others implement it."""

    model: str = ""
    """The model's name; "" if the server has one model and needs no name."""
    fim: str = ""
    """The prompt, with {prefix} and {suffix}; "" sends them as the API's own fields `prompt` and `suffix`."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    path: str = "/v1/completions"

    def body(self, request: TypedRequest, language_id: str, max_tokens: int) -> dict[str, Any]:
        """See Dialect. A request with token ids is sent as token ids."""
        body: dict[str, Any] = {
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.model:
            body["model"] = self.model
        return body | self._prompt(request) | dict(self.extra)

    def take(self, line: bytes, record: Record) -> None:
        """See Dialect."""
        chunk = _event(line)
        if chunk is None:
            return
        if "error" in chunk:
            record.end(Outcome.ERROR, json.dumps(chunk["error"]))
            return
        _take_choices(chunk, record)
        if usage := chunk.get("usage"):
            record.count_tokens(int(usage["completion_tokens"]))

    def _prompt(self, request: TypedRequest) -> dict[str, Any]:
        if request.token_ids:
            return {"prompt": request.token_ids}
        if not self.fim:
            return {"prompt": request.prefix, "suffix": request.suffix}
        before, _, rest = self.fim.partition("{prefix}")
        between, _, after = rest.partition("{suffix}")
        return {"prompt": f"{before}{request.prefix}{between}{request.suffix}{after}"}


@dataclass(frozen=True, slots=True)
class Llama:
    """llama-server's `/infill`, streaming."""

    extra: Mapping[str, Any] = field(default_factory=dict)
    path: str = "/infill"

    def body(self, request: TypedRequest, language_id: str, max_tokens: int) -> dict[str, Any]:
        """See Dialect."""
        return {
            "input_prefix": request.prefix,
            "input_suffix": request.suffix,
            "n_predict": max_tokens,
            "temperature": 0,
            "cache_prompt": True,
            "stream": True,
        } | dict(self.extra)

    def take(self, line: bytes, record: Record) -> None:
        """See Dialect."""
        chunk = _event(line)
        if chunk is None:
            return
        if "error" in chunk:
            record.end(Outcome.ERROR, json.dumps(chunk["error"]))
            return
        if text := chunk["content"]:
            record.text_came(text)
        if "tokens_predicted" in chunk:
            record.count_tokens(int(chunk["tokens_predicted"]))


@dataclass(frozen=True, slots=True)
class Tabby:
    """Tabby's completions: one answer, as a whole. The server sets its length."""

    extra: Mapping[str, Any] = field(default_factory=dict)
    path: str = "/v1/completions"

    def body(self, request: TypedRequest, language_id: str, max_tokens: int) -> dict[str, Any]:
        """See Dialect."""
        segments = {"prefix": request.prefix, "suffix": request.suffix}
        return {"language": language_id, "segments": segments, "temperature": 0} | dict(self.extra)

    def take(self, line: bytes, record: Record) -> None:
        """See Dialect."""
        if line.strip():
            _take_choices(json.loads(line), record)


def _take_choices(chunk: Mapping[str, Any], record: Record) -> None:
    if text := "".join(choice["text"] for choice in chunk["choices"]):
        record.text_came(text)


def _event(line: bytes) -> dict[str, Any] | None:
    """Return the data of a server-sent event; None for a line without data. llama-server also sends `error:` lines."""
    if line.startswith(b"error:"):
        return {"error": line.removeprefix(b"error:").decode(errors="replace").strip()}
    data = line.removeprefix(_DATA).strip()
    if not line.startswith(_DATA) or data == _DONE:
        return None
    found: dict[str, Any] = json.loads(data)
    return found


def _fim(spec: TargetSpec) -> str:
    fim = spec.options.get("fim", "")
    if fim and not 0 <= fim.find("{prefix}") < fim.find("{suffix}"):
        msg = f"{spec.name}: fim must hold {{prefix}} and after it {{suffix}}, got {fim!r}"
        raise TargetError(msg)
    return fim


def _extra(spec: TargetSpec) -> dict[str, Any]:
    text = spec.options.get("body", "{}")
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        msg = f"{spec.name}: body must be a JSON object that is added to each request's, got {text!r}"
        raise TargetError(msg)
    return found
