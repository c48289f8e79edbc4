"""Decides whether a newer request can reattach to a running generation, because its user typed its text. Pure.

After a reattach the generation goes on, and the newer request reads it from the end of the typed text on. An AnswerKey
tells which requests of several users can share one generation.
"""

from collections.abc import Hashable
from typing import Protocol

from completion_server.core.immutable import immutable
from completion_server.core.request import Mode, Request

CHARACTERS_PER_TOKEN = 4
"""Rough ratio for code, used until a generation has text of its own."""

_MIN_SHARE_LEFT = 0.5
"""Share of the newer request's max_tokens that must be left. With fewer tokens the answer would end too soon."""


@immutable
class Continuation:
    """The text that a request continues, and everything else that its completion depends on.

    The prefix is compared as text, which is exact.
    """

    prefix: str
    context: Hashable = ()
    """Everything else that a completion depends on: requests with other contexts ask for other completions."""
    max_tokens: int = 0
    is_single_line: bool = False
    is_seeded: bool = False
    """Whether the request asks for a sample that its seed repeats."""

    @classmethod
    def of(cls, request: Request) -> "Continuation":
        """Return the continuation that `request` asks for."""
        return cls(
            prefix=request.prefix,
            context=(
                request.document_uri, request.language_id, request.mode, request.max_tokens, request.sampling,
                request.stop, request.snippets, request.suffix,
            ),
            max_tokens=request.max_tokens,
            is_single_line=request.mode is Mode.SINGLE_LINE,
            is_seeded=bool(request.sampling.temperature) and request.sampling.seed is not None,
        )  # fmt: skip


class AnswerKey:
    """Requests with equal keys have equal answers. The text is hashed once and compared exactly."""

    __slots__ = ("_continuation", "_hash", "_scope")

    def __init__(self, scope: str, continuation: Continuation) -> None:
        """`scope` is a name of the callers that may read one answer."""
        self._scope = scope
        self._continuation = continuation
        self._hash = hash((scope, continuation))

    @classmethod
    def of(cls, scope: str, request: Request, continuation: Continuation) -> "AnswerKey | None":
        """Return the key of a request, None if the same request would not have the same answer again."""
        return cls(scope, continuation) if request.sampling.is_repeatable else None

    def __hash__(self) -> int:
        """Return the hash made at the start."""
        return self._hash

    def __eq__(self, other: object) -> bool:
        """Compare scope and text."""
        if not isinstance(other, AnswerKey):
            return NotImplemented
        return self._hash == other._hash and self._scope == other._scope and self._continuation == other._continuation


class GeneratedSoFar(Protocol):
    """How far a generation is."""

    @property
    def text(self) -> str:
        """All generated text, before any text rule."""
        ...

    @property
    def num_tokens(self) -> int:
        """Generated tokens."""
        ...


def typed_since(older: Continuation, newer: Continuation) -> str | None:
    """Return the text typed between two requests ("" for none), None if they ask for different completions."""
    if not newer.prefix.startswith(older.prefix) or newer.context != older.context:
        return None
    if newer.is_seeded:
        return None  # a seed repeats an answer only if the generation begins at the request's own cursor
    typed = newer.prefix[len(older.prefix) :]
    if older.is_single_line and ("\n" in typed or "\r" in typed):
        return None  # the generation ends with its line
    return typed


def typed_through(older: Continuation, progress: GeneratedSoFar, newer: Continuation) -> str | None:
    """Return the typed text after which `newer` can read the generation that continues `older`; None if it can't.

    The generation serves the newer request if its text so far agrees with the typed text, and enough of its tokens are
    left after that text.
    """
    typed = typed_since(older, newer)
    if typed is None or not (progress.text.startswith(typed) or typed.startswith(progress.text)):
        return None
    tokens_per_character = progress.num_tokens / len(progress.text) if progress.text else 1 / CHARACTERS_PER_TOKEN
    num_left = older.max_tokens - round(len(typed) * tokens_per_character)
    return typed if num_left >= newer.max_tokens * _MIN_SHARE_LEFT else None


class TypedPrefixFilter:
    """Removes the text that the user has typed already from generated text."""

    def __init__(self, typed: str) -> None:
        """Expect the generated text to begin with `typed`."""
        self._typed = typed
        self.has_diverged = False
        """Whether the generated text differs from the typed text."""

    @property
    def is_ahead(self) -> bool:
        """Whether the user has typed text that is not generated yet."""
        return bool(self._typed)

    def feed(self, text: str) -> str:
        """Take newly generated text and return the part of it after the typed text."""
        typed = self._typed
        if self.has_diverged:
            return ""
        if text.startswith(typed):
            self._typed = ""
            return text[len(typed) :]
        self.has_diverged = not typed.startswith(text)
        self._typed = typed[len(text) :]
        return ""
