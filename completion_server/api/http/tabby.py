"""Tabby's dialect, as tabby-agent speaks it. Pure."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from completion_server.api.http import openai
from completion_server.api.http.dialect import MANY, Answer, Asked, Body, Dialect, Json, Reply, Seed, read
from completion_server.api.http.openai import error_body
from completion_server.core.errors import InvalidRequestError
from completion_server.core.events import Feedback
from completion_server.core.request import Snippet

_ID = "cmpl-"
_MAX_DIGITS = 18
_MAX_TOKENS = 64
"""Tabby's own default: its answers are not streamed, so an editor waits for all of them."""
FeedbackKind = Literal["shown", "accepted", "accepted_word", "accepted_line", "rejected"]
_KINDS: dict[str, FeedbackKind] = {"view": "shown", "select": "accepted", "dismiss": "rejected"}
_PARTS: dict[str, FeedbackKind] = {"word": "accepted_word", "line": "accepted_line"}


class _Snippet(Body):
    filepath: str = ""
    body: str
    score: float = 0.0


_Snippets = Annotated[tuple[_Snippet, ...], MANY]


class _Segments(Body):
    prefix: str
    suffix: str = ""
    filepath: str = ""
    declarations: _Snippets = ()
    relevant_snippets_from_changed_files: _Snippets = ()
    relevant_snippets_from_recently_opened_files: _Snippets = ()
    clipboard: str = ""

    def snippets(self) -> Iterator[Snippet]:
        """Yield the context, the most relevant first. Declarations have no score, so scores order a group."""
        changed, opened = self.relevant_snippets_from_changed_files, self.relevant_snippets_from_recently_opened_files
        for group in (self.declarations, changed, opened):
            for each in sorted(group, key=lambda each: -each.score):
                yield Snippet(each.filepath, each.body)
        if self.clipboard:
            yield Snippet("", self.clipboard)


class _TabbyBody(Body):
    language: str = ""
    segments: _Segments
    temperature: float | None = None
    seed: Seed = None
    user: str = ""


class _EventBody(Body):
    type: str
    completion_id: str
    choice_index: int = 0
    accepted_characters: Annotated[int, Field(ge=0)] | None = None
    """In UTF-16 code units. The server's own page sends them; Tabby's clients accept the first line or all."""


def _whole(answer: Answer) -> Json:
    return {"id": f"{_ID}{answer.number}", "choices": [{"index": 0, "text": answer.text}]}


def translate(body: dict[str, Json]) -> tuple[Asked, Reply]:
    """Return a request to `/v1/completions` that has segments."""
    fields = read(_TabbyBody, body)
    segments = fields.segments
    asked = Asked(
        segments.prefix,
        segments.suffix,
        document_uri=segments.filepath,
        language_id=fields.language,
        snippets=tuple(segments.snippets()),
        max_tokens=_MAX_TOKENS,
        temperature=fields.temperature,
        seed=fields.seed,
        user=fields.user,
    )
    return asked, Reply(False, _whole, _whole, lambda answer: [_whole(answer)])  # the dialect has no streams


def _translate_any(body: dict[str, Json]) -> tuple[Asked, Reply]:
    return openai.translate(body) if body.get("segments") is None else translate(body)


TABBY = Dialect(translate, error_body)
TABBY_OR_OPENAI = Dialect(_translate_any, error_body)
"""Both have the same path."""


def event_of(body: dict[str, Json], select_kind: str) -> tuple[int, FeedbackKind, int | None] | None:
    """Return the number of an answer, its user's reaction and the accepted characters if they are told.

    None stands for an event that tells nothing about its text.

    Raises InvalidRequestError: the body names no answer.
    """
    fields = read(_EventBody, body)
    number = fields.completion_id.removeprefix(_ID)
    if not (number.isascii() and number.isdecimal() and len(number) <= _MAX_DIGITS):
        raise InvalidRequestError("completion_id", f"must be the id of a completion, such as {_ID}17")
    kind = _KINDS.get(fields.type)
    if kind == "accepted":
        kind = _PARTS.get(select_kind, kind)
    return (int(number), kind, fields.accepted_characters) if kind else None


def feedback_of(kind: FeedbackKind, text: str, characters: int | None = None) -> Feedback:
    """Return a reaction to an answer with this text. Lengths are in UTF-16 code units."""
    if characters is not None and kind.startswith("accepted"):
        return Feedback(kind, characters)
    accepted = {"accepted": text, "accepted_line": text.partition("\n")[0]}.get(kind, "")
    return Feedback(kind, len(accepted.encode("utf-16-le")) // 2)


def health(model: str, version: str) -> Json:
    """Return the answer to `/v1/health`. "status" is for clients of llama.cpp, which ask the same path."""
    return {
        "status": "ok",
        "model": model,
        "device": "unknown",
        "arch": "",
        "cpu_info": "",
        "cpu_count": 0,
        "cuda_devices": [],
        "version": {"build_date": "", "build_timestamp": "", "git_sha": "", "git_describe": version},
    }


def server_setting() -> Json:
    """Return the answer to `/v1beta/server_setting`: clients shall report to this server, and to nobody else."""
    return {"disable_client_side_telemetry": True}
