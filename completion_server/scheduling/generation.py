"""Generations, the requests that read them, and the subscription between the two. `work` and the runner drive them.

A generation holds a slot. It answers the request that it was started for, after a reattach a newer one, and the
requests that have joined it because they ask for the same answer.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from completion_server.core.events import Marks
from completion_server.core.outcome import FinishReason, Outcome, Usage
from completion_server.engine.interface import Output
from completion_server.scheduling.queue import QueueEntry
from completion_server.scheduling.reattach import TypedPrefixFilter


@dataclass(frozen=True, slots=True)
class PromptReady:
    """The prompt of a generation is built."""

    num_tokens: int
    num_new_tokens: int
    """Estimate of the prompt tokens that the engine will have to compute, because the prefix cache lacks them."""


Progress = PromptReady | Output
"""An item of a generation's source, which yields PromptReady once, then outputs."""


class Generation:
    """The text and tokens that the engine has generated for one prompt so far."""

    def __init__(self, entry: QueueEntry) -> None:
        """Begin for a request. A newer request may read it later."""
        self.entry = entry
        """The request whose prompt it continues."""
        self.text = ""
        """All generated text, before any text rule."""
        self.num_tokens = 0
        self.num_new_tokens = 0
        """Prompt tokens that the engine computes: an estimate until the first output counts the cached ones."""
        self.has_prompt = False
        """Whether its prompt is built."""
        self._num_prompt_tokens = 0
        self._last: Output | None = None
        self._last_at: float | None = None

    def start(self, ready: PromptReady) -> None:
        """The prompt is built."""
        self.has_prompt = True
        self._num_prompt_tokens, self.num_new_tokens = ready.num_tokens, ready.num_new_tokens

    def add(self, output: Output, now: float) -> float | None:
        """Take an output in; return the seconds since the one before it, None for the first."""
        if self._last is None:
            self.num_new_tokens = self._num_prompt_tokens - output.cached_prompt_tokens
        step_s = None if self._last_at is None else now - self._last_at
        self._last, self._last_at = output, now
        self.num_tokens += output.num_tokens
        self.text += output.text
        return step_s

    def usage(self) -> Usage:
        """Return its cost so far."""
        last = self._last
        return Usage(
            prompt_tokens=self._num_prompt_tokens,
            cached_prompt_tokens=last.cached_prompt_tokens if last else 0,
            completion_tokens=self.num_tokens,
            drafted_tokens=last.drafted_tokens if last else 0,
            accepted_draft_tokens=last.accepted_draft_tokens if last else 0,
        )


class Subscription:
    """Reads a generation for one request from an offset on, which is the length of the text typed since."""

    def __init__(self, generation: Generation, marks: Marks, typed: str | None = None) -> None:
        """Read a generation from its beginning, or that of an older request after the text `typed`."""
        self.generation = generation
        self._marks = marks
        marks.num_typed = len(typed or "")
        self._is_reattached = typed is not None
        self._filter = TypedPrefixFilter(typed or "")

    @property
    def has_output(self) -> bool:
        """Whether the request has had its first token."""
        return self._marks.first_output is not None

    def feed(self, text: str, now: float) -> str:
        """Take newly generated text; return the part of it that the request has not typed itself."""
        new = self._filter.feed(text)
        if self._filter.is_ahead or self._filter.has_diverged:
            return ""
        if not self.has_output:
            if self._is_reattached and not new:
                return ""
            self._marks.first_output = now
            self._marks.tokens_at_first_output = self.generation.num_tokens
        self._marks.last_output = now
        return new

    def has_diverged(self, finish: FinishReason | None) -> bool:
        """Return whether the generation is of no use to the request; `finish` is its end, None if it has not ended.

        Either its text differs from the typed text, or it ended before it had text after the typed text.
        """
        if self._filter.has_diverged:
            return True
        if finish is None:
            return False
        return self._filter.is_ahead or (finish is FinishReason.LENGTH and not self.has_output)

    def reset(self) -> None:
        """Forget the stages that the request has passed: it will be answered from another generation."""
        marks = self._marks
        marks.started = marks.prompted = marks.first_output = marks.last_output = None
        marks.tokens_at_first_output = marks.num_typed = 0
        marks.source = marks.generation_trace = None


class Subscriber(Protocol):
    """A request as the runner sees it: a source of a generation, and a reader of one."""

    @property
    def entry(self) -> QueueEntry:
        """The request's entry in the book."""
        ...

    @property
    def marks(self) -> Marks:
        """The runner sets the marks from `started` to `last_output`."""
        ...

    def generate(self) -> AsyncGenerator[Progress]:
        """Generate from the request's own prompt. Closing the generator aborts the work in the engine.

        The generator must not hold the subscriber: another request may read it by then.
        """
        ...

    def receive(self, text: str) -> None:
        """Take the text that follows the request's cursor."""
        ...

    def finish(self, reason: FinishReason | None) -> Outcome | None:
        """Return the outcome of the answer, None if it continues. `reason` is its generation's end, if that ended."""
        ...

    def end(self, outcome: Outcome, usage: Usage) -> None:
        """Tell the caller. Called exactly once; the generation may still be stopping."""
        ...
