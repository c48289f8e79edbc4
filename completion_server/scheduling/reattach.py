"""Decides whether a running generation serves a newer request, whose user has typed what it generates. Pure.

The request then reattaches: the generation goes on, and the newer request reads it from behind what was typed.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

from completion_server.core.request import Mode, Request

CHARACTERS_PER_TOKEN = 4
"""Of code, roughly: used until a generation has shown its own ratio."""

_MIN_SHARE_LEFT = 0.5
"""Of the newer request's max_tokens. With fewer left, the answer would end too soon."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """What a request wants to have continued.

    The prefix is compared as text: it is at hand, and a comparison costs less than a hash.
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
        """Return what `request` wants to have continued."""
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


class Progress(Protocol):
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


def typed_through(older: Continuation, progress: Progress, newer: Continuation) -> str | None:
    """Return the typed text behind which `newer` can read the generation that continues `older`; None if it can't.

    The generation serves the newer request if it says, or may yet say, what was typed, and leaves enough behind it.
    """
    typed = typed_since(older, newer)
    if typed is None or not (progress.text.startswith(typed) or typed.startswith(progress.text)):
        return None
    tokens_per_character = progress.num_tokens / len(progress.text) if progress.text else 1 / CHARACTERS_PER_TOKEN
    num_left = older.max_tokens - round(len(typed) * tokens_per_character)
    return typed if num_left >= newer.max_tokens * _MIN_SHARE_LEFT else None


class TypedPrefixFilter:
    """Removes from generated text what the user has typed already."""

    def __init__(self, typed: str) -> None:
        """Expect the generation to say `typed` first."""
        self._typed = typed
        self.has_diverged = False
        """Whether the generation said something else."""

    @property
    def is_ahead(self) -> bool:
        """Whether the user has typed something that the generation has yet to say."""
        return bool(self._typed)

    def feed(self, text: str) -> str:
        """Take newly generated text and return the part of it behind the typed text."""
        typed = self._typed
        if self.has_diverged:
            return ""
        if text.startswith(typed):
            self._typed = ""
            return text[len(typed) :]
        self.has_diverged = not typed.startswith(text)
        self._typed = typed[len(text) :]
        return ""
