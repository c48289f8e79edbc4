"""A server over HTTP: a POST for each request; editors hang up at the next key, or wait for the end.

The dialects of completion servers: path, body and the lines of an answer.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Self

import aiohttp

from completion_client import ServiceError, Token, UnauthenticatedError
from loadtest.targets import ClientSettings, Editor, TargetError, TargetSpec, token_of
from loadtest.targets.editor import CallEditor
from loadtest.targets.record import Outcome, Record
from loadtest.traffic.typed import Trace, TypedRequest, TypedSession

_KEPT_S = 3.0
"""How long an idle connection is kept: less than servers keep it, 5 s for vLLM and llama.cpp."""
_LONGEST_LINE = 1 << 20
_STREAM = {"temperature": 0, "stream": True}

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Dialect:
    """A request format and its answer format."""

    path: str
    """The path of the POST."""
    body: Callable[[TypedRequest, str, int], dict[str, Any]]
    """Returns the body of the POST, from a request, its language and the most tokens."""
    text: Callable[[Event], str]
    """Returns the text of an event."""
    tokens: Callable[[Event], int | None]
    """Returns the generated tokens, if an event has their number."""

    def take(self, line: bytes, record: Record) -> None:
        """Write a line of an answer to a record. Raises ValueError, KeyError or TypeError for another dialect.

        A line is a server-sent event, or the one JSON object of an answer that is no stream. llama-server also sends
        `error:` lines.
        """
        name, colon, data = line.strip().partition(b":")
        if name == b"error":
            record.end(Outcome.ERROR, data.decode(errors="replace").strip())
        if not line.startswith((b"data:", b"{")) or data.strip() == b"[DONE]":
            return
        event = json.loads(data if name == b"data" else name + colon + data)
        if "error" in event:
            record.end(Outcome.ERROR, json.dumps(event["error"]))
            return
        if text := self.text(event):
            record.text_came(text)
        if (tokens := self.tokens(event)) is not None:
            record.completion_tokens = int(tokens)


def _openai_body(model: str, fim: str, request: TypedRequest, _language_id: str, max_tokens: int) -> dict[str, Any]:
    """Return the body for a server of one model, if `model` is "", or of several.

    The prompt is `fim` with {prefix} and {suffix}; "" sends them as the API's own fields `prompt` and `suffix`. A
    request with token ids is sent as token ids.
    """
    prompt: dict[str, Any] = {"prompt": request.prefix, "suffix": request.suffix}
    if request.token_ids:
        prompt = {"prompt": request.token_ids}
    elif fim:
        before, _, rest = fim.partition("{prefix}")
        between, _, after = rest.partition("{suffix}")
        prompt = {"prompt": f"{before}{request.prefix}{between}{request.suffix}{after}"}
    named = {"model": model} if model else {}
    return {"max_tokens": max_tokens, "stream_options": {"include_usage": True}} | _STREAM | named | prompt


def _llama_body(request: TypedRequest, _language_id: str, max_tokens: int) -> dict[str, Any]:
    texts = {"input_prefix": request.prefix, "input_suffix": request.suffix}
    return {"n_predict": max_tokens, "cache_prompt": True} | _STREAM | texts


def _tabby_body(request: TypedRequest, language_id: str, _max_tokens: int) -> dict[str, Any]:
    """Return the body for Tabby, whose server sets the length of an answer and sends it as a whole."""
    segments = {"prefix": request.prefix, "suffix": request.suffix}
    return {"language": language_id, "segments": segments, "temperature": 0}


def _dialect_of(spec: TargetSpec) -> Dialect:
    """Return a target's dialect. Raises TargetError if its prompt is invalid."""
    if spec.kind == "llama+http":
        return Dialect(
            "/infill", _llama_body, lambda event: str(event["content"]), lambda event: event.get("tokens_predicted")
        )
    fim = spec.options.get("fim", "")
    if fim and not 0 <= fim.find("{prefix}") < fim.find("{suffix}"):
        raise TargetError(f"{spec.name}: fim must hold {{prefix}} and after it {{suffix}}, got {fim!r}")
    openai = partial(_openai_body, spec.options.get("model", ""), fim)
    return Dialect(
        "/v1/completions",
        _tabby_body if spec.kind == "tabby+http" else openai,
        lambda event: "".join(choice["text"] for choice in event["choices"]),
        lambda event: (event.get("usage") or {}).get("completion_tokens"),
    )


def _extra_body(spec: TargetSpec) -> dict[str, Any]:
    text = spec.options.get("body", "{}")
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise TargetError(f"{spec.name}: body must be a JSON object that is added to each request's, got {text!r}")
    return found


class HttpTarget:
    """A server that speaks one of the dialects."""

    def __init__(self, spec: TargetSpec, settings: ClientSettings, body: Mapping[str, Any] | None = None) -> None:
        """Ask the servers of `spec`; `body` is added to each request's body.

        Raises TargetError if one of its options is invalid.
        """
        self.name = spec.name
        self.num_connected = 0
        self.reconnects_s: list[float] = []
        """Stays empty: these editors connect as they ask."""
        self.spec = spec
        self.settings = settings
        self.dialect = _dialect_of(spec)
        self.body = _extra_body(spec) | dict(body or {})
        self.waits = spec.options.get("waits") == "1"
        if self.waits and not settings.cancels_at_key:
            raise TargetError(f"{spec.name}: waits=1 sends the newest request, so it goes with editor.cancels_at_key")
        self._tokens = spec.credentials.tokens()
        self._http: aiohttp.ClientSession | None = None

    @property
    def http(self) -> aiohttp.ClientSession:
        """The connections, for all editors."""
        assert self._http is not None, "the target was not entered"
        return self._http

    @asynccontextmanager
    async def editors(self, trace: Trace) -> AsyncIterator[Sequence[Editor]]:
        """Yield an editor for each session; connections are opened when they are needed, and kept alive."""
        found = [_HttpEditor(self, each, token_of(self._tokens, each.number) or Token()) for each in trace.sessions]
        self.num_connected = len(found)
        try:
            yield found
        finally:
            closing = [task for editor in found for task in editor.close_nowait()]
            await asyncio.gather(*closing, return_exceptions=True)

    def present(self) -> Mapping[int, int]:
        """Return nothing; see Target."""
        return {}

    async def generated_tokens(self) -> float:
        """Return the engine's counter; nan if the target has no metrics URL."""
        return await self.spec.generated_tokens()

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=None)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEPT_S)
        self._http = aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=_LONGEST_LINE)
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.http.close()


class _HttpEditor(CallEditor):
    """One editor."""

    def __init__(self, target: HttpTarget, session: TypedSession, token: Token) -> None:
        super().__init__(target.settings)
        self._target = target
        self._session = session
        self._token = token
        self._shift = 0
        self._turn = asyncio.Lock() if target.waits else None
        """Held while a request runs; None for an editor that hangs up."""

    async def ask(self, record: Record, max_tokens: int) -> None:
        """See CallEditor."""
        if self._turn is None:
            await self._call(record, max_tokens)
            return
        record.is_sent = False
        await self._turn.acquire()  # A request that is stale by then is cancelled here.
        record.is_sent = True
        call = asyncio.create_task(self._call(record, max_tokens))
        self._tasks.add(call)
        call.add_done_callback(self._call_ended)
        await asyncio.shield(call)

    def _call_ended(self, call: asyncio.Task[None]) -> None:
        self._tasks.discard(call)
        assert self._turn is not None
        self._turn.release()

    async def _call(self, record: Record, max_tokens: int) -> None:
        target, hosts = self._target, self._target.spec.hosts
        body = target.dialect.body(record.request, self._session.language_id, max_tokens) | target.body
        host = hosts[(self._session.region + self._shift) % len(hosts)]
        url, data = f"http://{host}{target.dialect.path}", json.dumps(body).encode()
        try:
            try:
                await self._post(url, data, record)
            except aiohttp.ClientConnectionError:  # the server closed an idle connection just as the request came
                await self._post(url, data, record)
        except ServiceError as error:
            record.end(Outcome.ERROR, error.message)
        except aiohttp.ClientError as error:
            record.end(Outcome.ERROR, f"{type(error).__name__}: {error}")
        except (ValueError, KeyError, TypeError) as error:
            record.end(Outcome.ERROR, f"an answer that can't be read: {type(error).__name__}: {error}")

    def disconnect(self, host_shift: int | None) -> None:
        """See CallEditor. Idle connections are kept, since they belong to no session."""
        if host_shift is not None:
            self._shift = host_shift

    async def _post(self, url: str, body: bytes, record: Record) -> None:
        presented = await self._token.get()
        headers = {"Content-Type": "application/json"}
        if presented:
            headers["Authorization"] = f"Bearer {presented}"
        async with self._target.http.post(url, data=body, headers=headers) as answer:
            if not answer.ok:
                text = await answer.text()
                if presented and answer.status == HTTPStatus.UNAUTHORIZED:
                    self._token.refused(presented, UnauthenticatedError(text))
                record.end(Outcome.ERROR, text)
                return
            self._token.accepted(presented)
            async for line in answer.content:
                if not record.has_ended:  # The user types on while an editor waits for the end.
                    self._target.dialect.take(line, record)
        record.end_whole()
