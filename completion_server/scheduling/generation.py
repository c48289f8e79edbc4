"""Generations, the requests that read them, and the subscription between the two. The runner drives them.

A generation holds a slot. It answers the request that it was started for, and after a reattach a newer one.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from typing import Protocol

from completion_server.core.events import Marks
from completion_server.core.outcome import FinishReason, Outcome, Usage
from completion_server.engine.interface import Output
from completion_server.scheduling.queue import QueueEntry
from completion_server.scheduling.reattach import TypedPrefixFilter, typed_since, typed_through

_FINISH_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


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
        """Read a generation of the request's own, or that of an older request after the text `typed`."""
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
        marks.tokens_at_first_output = 0


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


@dataclass(slots=True, eq=False)
class HeldRequest:
    """A request that the runner holds until its end is reported and the generation of its slot has stopped."""

    subscriber: Subscriber
    work: "Work | None" = None
    """The work that holds its slot, until that is done."""
    has_ended: bool = False

    @property
    def id(self) -> str:
        """The request's id."""
        return self.subscriber.entry.id

    def usage(self) -> Usage:
        """Return the cost so far of the generation that it reads."""
        subscription = self.work.subscription if self.work is not None else None
        return Usage() if subscription is None else subscription.generation.usage()


@dataclass(slots=True, eq=False)
class Work:
    """A generation that holds a slot. It is for one request, and for a newer one after a reattach."""

    generation: Generation
    request: HeldRequest
    subscription: Subscription | None
    """None once the request has no use for the generation."""
    task: asyncio.Task[Outcome | None] | None = None
    """None once it is done."""
    is_over: bool = False
    """Whether the generation has ended or failed; the engine may still be releasing it."""
    aborted_at: float | None = None

    @classmethod
    def begin(cls, request: HeldRequest) -> "Work":
        """Return the work of a request that has just got a slot."""
        generation = Generation(request.subscriber.entry)
        return cls(generation, request, Subscription(generation, request.subscriber.marks))

    def serves(self, entry: QueueEntry) -> bool:
        """Return whether a newer request may reattach."""
        older = self.generation.entry.continuation
        if self.is_over or self.subscription is None or older is None or entry.continuation is None:
            return False
        return typed_through(older, self.generation, entry.continuation) is not None

    def move_to(self, request: HeldRequest) -> None:
        """Be read by a newer request from now on."""
        older, newer = self.generation.entry.continuation, request.subscriber.entry.continuation
        assert older is not None
        assert newer is not None
        self.request.work, request.work = None, self
        self.request = request
        self.subscription = Subscription(self.generation, request.subscriber.marks, typed_since(older, newer) or "")

    def pass_on(self, text: str, now: float) -> bool:
        """Give newly generated text to the request; return whether that was its first output."""
        assert self.subscription is not None
        had_output = self.subscription.has_output
        new = self.subscription.feed(text, now)
        if new:
            self.request.subscriber.receive(new)
        return self.subscription.has_output and not had_output

    def finish(self, output: Output) -> Outcome | None:
        """Return the request's outcome if an output was the last one for it; drop the subscription if it diverged."""
        assert self.subscription is not None
        reason = None if output.finish is None else _FINISH_REASONS[output.finish]
        if not self.subscription.has_diverged(reason):
            return self.request.subscriber.finish(reason)
        self.subscription.reset()
        self.subscription = None
        return None


def first_serving(requests: Iterable[HeldRequest], entry: QueueEntry) -> str | None:
    """Return the first request whose generation, or the one that it waits for, serves a newer request."""
    return next((each.id for each in requests if (each.work or Work.begin(each)).serves(entry)), None)
