"""The requests that the runner holds, and the work that answers them: a generation with a slot, and its readers."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from completion_server.core.events import GenerationSource
from completion_server.core.outcome import FinishReason, Outcome, Usage
from completion_server.core.trace_context import TraceContext
from completion_server.engine.interface import Output
from completion_server.scheduling.generation import Generation, Subscriber, Subscription
from completion_server.scheduling.queue import QueueEntry
from completion_server.scheduling.reattach import typed_since, typed_through

_FINISH_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


@dataclass(slots=True, eq=False)
class HeldRequest:
    """A request that the runner holds until its end is reported and the generation of its slot has stopped."""

    subscriber: Subscriber
    work: "Work | None" = None
    """The work that holds its slot or that it has joined, until that is done or the request reads it no more."""
    subscription: Subscription | None = None
    """None while it reads no generation, and after it has left one to a newer request or diverged from it."""
    has_ended: bool = False

    @property
    def id(self) -> str:
        """The request's id."""
        return self.subscriber.entry.id

    def usage(self) -> Usage:
        """Return the cost so far of the generation that it reads. The holder of the slot counts the tokens."""
        if self.subscription is None:
            return Usage()
        usage = self.subscription.generation.usage()
        return usage if self.work is not None and self.work.request is self else replace(usage, is_shared=True)

    def serves(self, entry: QueueEntry) -> bool:
        """Return whether a newer request may reattach to its generation, or to the one that it waits for."""
        if self.work is None:
            generation = Generation(self.subscriber.entry)
        elif self.work.is_over or self.subscription is None:
            return False
        else:
            generation = self.work.generation
        older = generation.entry.continuation
        if older is None or entry.continuation is None:
            return False
        return typed_through(older, generation, entry.continuation) is not None

    def pass_on(self, text: str, now: float) -> bool:
        """Take newly generated text; return whether that was its first output."""
        assert self.subscription is not None
        had_output = self.subscription.has_output
        new = self.subscription.feed(text, now)
        if new:
            self.subscriber.receive(new)
        return self.subscription.has_output and not had_output

    def finish(self, output: Output) -> Outcome | None:
        """Return its outcome if an output was the last one for it; drop the subscription if it diverged."""
        assert self.subscription is not None
        reason = None if output.finish is None else _FINISH_REASONS[output.finish]
        if not self.subscription.has_diverged(reason):
            return self.subscriber.finish(reason)
        self.subscription.reset()
        self.subscription = None
        return None


@dataclass(slots=True, eq=False)
class Work:
    """A generation that holds a slot, and the requests that read it.

    It is for the request that it was started for, for a newer one after a reattach, and for those that have joined it.
    """

    generation: Generation
    request: HeldRequest
    """The request that holds the slot."""
    joined: dict[str, HeldRequest] = field(default_factory=dict)
    """The other requests that read the generation."""
    task: asyncio.Task[Outcome | None] | None = None
    """None once it is done."""
    is_over: bool = False
    """Whether the generation has ended or failed; the engine may still be releasing it."""
    trace: TraceContext | None = None
    """The trace of the request that it was started for."""
    aborted_at: float | None = None

    @classmethod
    def begin(cls, request: HeldRequest) -> "Work":
        """Return the work of a request that has just got a slot."""
        work = cls(Generation(request.subscriber.entry), request, trace=request.subscriber.marks.trace)
        work._subscribe(request, GenerationSource.OWN)
        return work

    @property
    def readers(self) -> list[HeldRequest]:
        """The requests that read the generation; the holder of the slot is the last."""
        return [*self.joined.values(), self.request]

    def join(self, request: HeldRequest) -> None:
        """Be read by one more request, from the beginning."""
        self._subscribe(request, GenerationSource.JOINED)
        self.joined[request.id] = request

    def leave(self, request: HeldRequest) -> None:
        """Be read no longer by a request that has joined."""
        del self.joined[request.id]
        request.work = None

    def move(self, older: HeldRequest, newer: HeldRequest) -> None:
        """Be read by a newer request in the place of an older one, after the text typed between the two."""
        continuation = newer.subscriber.entry.continuation
        assert self.generation.entry.continuation is not None
        assert continuation is not None
        if older is self.request:
            self.request = newer
        else:
            del self.joined[older.id]
            self.joined[newer.id] = newer
        older.work = older.subscription = None
        typed = typed_since(self.generation.entry.continuation, continuation) or ""
        self._subscribe(newer, GenerationSource.REATTACHED, typed)

    def hand_over(self, request: HeldRequest) -> None:
        """Give the slot to a request that has joined; the one that held it reads no longer."""
        del self.joined[request.id]
        self.request.work, self.request = None, request

    def _subscribe(self, request: HeldRequest, source: GenerationSource, typed: str | None = None) -> None:
        marks = request.subscriber.marks
        request.work = self
        request.subscription = Subscription(self.generation, marks, typed)
        marks.source, marks.generation_trace = source, self.trace


def first_serving(requests: Iterable[HeldRequest], entry: QueueEntry) -> str | None:
    """Return the first request whose generation, or the one that it waits for, serves a newer request."""
    return next((each.id for each in requests if each.serves(entry)), None)
