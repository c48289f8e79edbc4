"""A generation and the subscription through which one request reads it. Pure: the runner drives both."""

from dataclasses import dataclass

from completion_server.core.events import Marks
from completion_server.core.outcome import FinishReason, Usage
from completion_server.engine.interface import Output
from completion_server.scheduling.queue import QueueEntry
from completion_server.scheduling.reattach import TypedPrefixFilter

FINISH_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


@dataclass(frozen=True, slots=True)
class PromptReady:
    """The prompt of a generation is built."""

    num_tokens: int
    num_new_tokens: int
    """Of these, the tokens that the engine will have to compute: an estimate of what the prefix cache lacks."""


Progress = PromptReady | Output
"""What a source of a generation yields: PromptReady once, then outputs."""


class Generation:
    """What the engine has generated for one prompt so far."""

    def __init__(self, entry: QueueEntry) -> None:
        """Begin for a request. A newer request may read it later."""
        self.entry = entry
        """The request whose prompt it continues."""
        self.text = ""
        """All generated text, before any text rule."""
        self.num_tokens = 0
        self.num_new_tokens = 0
        """Prompt tokens that the engine computes: an estimate until the first output counts the cached ones."""
        self._num_prompt_tokens = 0
        self._last: Output | None = None
        self._last_at: float | None = None

    def start(self, ready: PromptReady) -> None:
        """The prompt is built."""
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
        """Return what it has cost so far."""
        last = self._last
        return Usage(
            prompt_tokens=self._num_prompt_tokens,
            cached_prompt_tokens=last.cached_prompt_tokens if last else 0,
            completion_tokens=self.num_tokens,
            drafted_tokens=last.drafted_tokens if last else 0,
            accepted_draft_tokens=last.accepted_draft_tokens if last else 0,
        )


class Subscription:
    """One request's reading of a generation, from an offset on: the length of what its user has typed since."""

    def __init__(self, generation: Generation, marks: Marks, typed: str | None = None) -> None:
        """Read a generation of the request's own, or behind `typed` that of an older request."""
        self.generation = generation
        self._marks = marks
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
        """Return whether the generation is of no use to the request; `finish` says how it ended, None if it has not.

        It says something else than what was typed, or it ended before it said anything that was not typed.
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
        marks.tokens_at_first_output = 0
