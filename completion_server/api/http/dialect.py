"""What the dialects have in common: the request in the server's terms, the answer, and how a body's fields are read."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import from_json

from completion_server.core.errors import CompletionError, InvalidRequestError
from completion_server.core.outcome import End, FinishReason, Outcome
from completion_server.core.request import Snippet

Json = Any
"""A value that `json.dumps` takes."""
DONE = "[DONE]"
"""Ends a stream in OpenAI's form."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request of a dialect asks for. Requests of one caller that are equal ask for the same."""

    prefix: str
    suffix: str = ""
    document_uri: str = ""
    language_id: str = ""
    snippets: tuple[Snippet, ...] = ()
    """The most relevant first."""
    max_tokens: int | None = None
    """None for the server's default; more than the server's limit means the limit."""
    temperature: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    timeout_s: float = math.inf
    """After this time, what was generated until then is the answer."""
    user: str = ""
    """The client's own id of its user, "" if it sends none."""
    is_warm_up: bool = False
    """Whether it wants no text."""
    has_crlf: bool = field(default=False, compare=False)
    """Whether most lines of the client's document end with "\\r\\n"; those of the texts here end with "\\n"."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, or as much of it as is known."""

    number: int
    """Names the answer in its user's feedback."""
    created_s: int
    """Unix seconds."""
    model: str
    text: str = ""
    end: End = End(Outcome(FinishReason.STOP))

    @property
    def is_cut(self) -> bool:
        """Whether a limit of tokens or time ended it."""
        return self.end.outcome.reason in (FinishReason.LENGTH, FinishReason.DEADLINE)


@dataclass(frozen=True, slots=True)
class Reply:
    """Writes the answer to one request."""

    is_streamed: bool
    """Whether the answer is a stream of server-sent events."""
    whole: Callable[[Answer], Json]
    """Returns the answer as one document."""
    piece: Callable[[Answer], Json]
    """Returns an event with text; the answer has only that text, and no end yet."""
    last: Callable[[Answer], list[Json]]
    """Returns the events at the end; the answer has the whole text."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How requests of one address are read, and how their errors are written."""

    translate: Callable[[dict[str, Json]], tuple[Asked, Reply]]
    """Raises InvalidRequestError for an invalid field."""
    error: Callable[[int, CompletionError], Json]
    """Returns the body of an error, from the HTTP status and the error."""
    fails_unused: bool = False
    """Whether a shed or superseded request fails: its clients would remember an empty answer as "nothing here"."""


class Body(BaseModel):
    """The fields of a body that the server reads; plugins send many others, which are hints to other servers."""

    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Json) -> Json:
        """Return a body without optional fields that are null: many clients write absent values so."""
        if not isinstance(given, dict):
            return given
        required = {name for name, field in cls.model_fields.items() if field.is_required()}
        return {name: value for name, value in given.items() if value is not None or name in required}


_HALF = rb"u[dD][89a-fA-F][\da-fA-F]{2}"
_PAIR = rb"u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}"
_ESCAPE = re.compile(rb"\\(?:%b|(?P<half>%b)|.)" % (_PAIR, _HALF), re.DOTALL)
"""An escape of JSON: a surrogate pair, half of one, or another."""
_SURROGATE = re.compile(rb"\\" + _HALF)
MANY = Field(max_length=1024)
"""Bounds a list in a body. Plugins send some tens of items."""
Stops = Annotated[tuple[str, ...], MANY, BeforeValidator(lambda given: [given] if isinstance(given, str) else given)]
"""Stop strings, which the dialects allow to be one or several."""
Seed = Annotated[int | None, AfterValidator(lambda given: None if given is None or given < 0 else given)]
"""A seed; a negative one stands for none."""
B = TypeVar("B", bound=Body)


def parse(data: bytes) -> dict[str, Json]:
    """Return a body. It may nest about 200 levels deep.

    Half a surrogate pair, as at the edge of a text that a client cut, becomes U+FFFD.

    Raises InvalidRequestError: it is no JSON object.
    """
    try:
        body = from_json(_with_whole_pairs(data), allow_inf_nan=False)
    except ValueError as error:
        raise InvalidRequestError("body", f"must be JSON, but {error}") from None
    if not isinstance(body, dict):
        raise InvalidRequestError("body", f"must be a JSON object, got {_described(body)}")
    return body


def read(kind: type[B], body: Mapping[str, Json]) -> B:
    """Return the fields of a body.

    Raises InvalidRequestError: a field has a wrong type or value; the error names the first one.
    """
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False)[0]
        path = fault["loc"]
        names = [part for i, part in enumerate(path) if isinstance(part, int) or i == 0 or not _is_branch(part)]
        name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in names).lstrip(".")
        what = f"{fault['msg'][:1].lower()}{fault['msg'][1:]}, got {_described(fault['input'])}"
        raise InvalidRequestError(name or "body", "must be set" if fault["type"] == "missing" else what) from None


def _with_whole_pairs(data: bytes) -> bytes:
    """Return JSON without escapes of half a surrogate pair, which the parser refuses."""
    if not _SURROGATE.search(data):  # a large body has many other escapes
        return data
    return _ESCAPE.sub(lambda found: rb"\ufffd" if found["half"] else found[0], data)


def _is_branch(part: str) -> bool:
    """Return whether a part of an error's path names an alternative of a type, not a field."""
    return part in ("str", "int", "float", "bool") or "[" in part


def _described(value: Json) -> str:
    """Return a value for a message. Text is code, and stays out of messages and logs."""
    if isinstance(value, str):
        return f"text of {len(value)} characters"
    if isinstance(value, list | dict):
        return f"{'an array' if isinstance(value, list) else 'an object'} of {len(value)}"
    return "null" if value is None else str(value).lower()
