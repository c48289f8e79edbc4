"""Requests and their work as the runner holds them: a generation with a slot, and the request that reads it."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from typing import Protocol

from completion_server.core.events import Marks
from completion_server.core.outcome import FinishReason, Outcome, Usage
from completion_server.engine.interface import Output
from completion_server.scheduling.generation import FINISH_REASONS, Generation, Progress, Subscription
from completion_server.scheduling.queue import QueueEntry
from completion_server.scheduling.reattach import typed_since, typed_through


class Subscriber(Protocol):
    """A request as the runner sees it: a source of a generation, and a reader of one."""

    @property
    def entry(self) -> QueueEntry:
        """What the book needs to know of it."""
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
        """Return how the answer ended, None if it goes on. `reason` says how its generation ended, if it did."""
        ...

    def end(self, outcome: Outcome, usage: Usage) -> None:
        """Tell the caller. Called exactly once; the generation may still be stopping."""
        ...


@dataclass(slots=True, eq=False)
class HeldRequest:
    """A request that the runner holds: until its end is told, and the generation of its slot has stopped."""

    subscriber: Subscriber
    work: "Work | None" = None
    """The work that holds its slot, until that is done."""
    has_ended: bool = False

    @property
    def id(self) -> str:
        """The request's id."""
        return self.subscriber.entry.id

    def usage(self) -> Usage:
        """Return what the generation that it reads has cost so far."""
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
    """Whether the generation has said its last word, or failed; the engine may still be letting go of it."""
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
        reason = None if output.finish is None else FINISH_REASONS[output.finish]
        if not self.subscription.has_diverged(reason):
            return self.request.subscriber.finish(reason)
        self.subscription.reset()
        self.subscription = None
        return None


def first_serving(requests: Iterable[HeldRequest], entry: QueueEntry) -> str | None:
    """Return the first request whose generation serves a newer one."""
    return next((each.id for each in requests if each.work is not None and each.work.serves(entry)), None)
