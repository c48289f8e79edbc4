"""Live requests and the generations that they read: the records of the book. Pure.

Every live request belongs to one generation. The request that leads it holds its slot, or waits for one; the requests
that have joined it ask for the same answer. After a reattach the leader is a newer request than the one that the
generation was started for, and reads it from after the text typed since.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum

from completion_server.core.clock import NEVER, Deadline
from completion_server.core.events import GenerationSource, Marks
from completion_server.core.outcome import FinishReason, Outcome, Usage
from completion_server.core.request import Trigger
from completion_server.core.trace_context import TraceContext
from completion_server.engine.interface import Output
from completion_server.requests.scheduling.reattach import Continuation, TypedPrefixFilter, typed_since, typed_through
from completion_server.requests.scheduling.shares import Charge, User


class State(Enum):
    """The state of a live request."""

    QUEUED = "queued"
    """It leads a generation that waits for a slot."""
    JOINED = "joined"
    """It has joined the generation of another request, which waits or runs."""
    RUNNING = "running"
    """It leads a generation that runs."""


LAST_S, LAST_SHARE = 0.3, 0.1
"""A block ends with the lines that are whole so long before its deadline, or so much of its time if that is less: a
caller waits no longer than to the deadline, and the end has to reach it by then."""


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A request in the book. The first fields describe what it asks for, the others are the book's.

    The book calls `receive` and `end`, which must neither raise nor call the book.
    """

    id: str
    lane: str
    """Key of the lane: a newer request takes the place of an older one on the same lane. Prefetches have a lane beside
    it."""
    session: str
    """Sequences are compared within a session; across sessions the later arrival is the newer."""
    sequence: int
    trigger: Trigger
    deadline: Deadline = NEVER
    """The time at which the request ends in any case."""
    arrived_at: float = 0.0
    """Clock seconds."""
    ttft_deadline: float = float("inf")
    """Clock seconds by which the first token must come; later the answer has no value."""
    num_new_tokens: int = 0
    """Prompt tokens that the engine will have to compute, by the estimate made on arrival."""
    continuation: Continuation | None = None
    """The text that the request continues; None if it can't reattach and no request can reattach to it."""
    answer_key: Hashable | None = None
    """Requests with equal keys have equal answers, so one generation serves them; None if no other request's serves."""
    stamp: int = 0
    """When it was accepted, in nanoseconds on the host's clock; 0 if other replicas are not told of it."""
    owner: str = ""
    """Key of the user in its tenant. Users share a tenant's slots and tokens, and tenants share those of the engine."""
    tenant: str = ""
    """Key of the tenant."""
    weight: float = 1.0
    """Of the tenant, now: twice the weight, twice the tokens."""
    marks: Marks = field(default_factory=lambda: Marks(0.0))
    """The book sets the marks from `started` to `last_output`."""
    queued_at: float = field(default=0.0, init=False)
    generation: "Generation" = field(init=False, repr=False)
    """The generation that it leads or has joined; set by the book."""
    account: User = field(init=False, repr=False)
    """Of its owner; set while it waits."""
    has_token: bool = field(default=False, init=False)
    inherits_slot: bool = field(default=False, init=False)
    """Whether it waits for the slot of a generation that it alone read and diverged from: that is never too late."""
    typed: TypedPrefixFilter | None = field(default=None, init=False)
    """Removes the text typed since the generation began; None if the request has not reattached."""

    @property
    def last_call(self) -> float:
        """Clock seconds from which on the answer ends as soon as there is something to show, see `LAST_S`."""
        at = self.deadline.at
        return at - min(LAST_S, LAST_SHARE * (at - self.arrived_at))

    def receive(self, text: str, finish: FinishReason | None) -> Outcome | None:
        """Take new text, "" at the last call; return the outcome if the answer is complete.

        `finish` is set if no more text comes.
        """
        raise NotImplementedError

    def end(self, outcome: Outcome, usage: Usage) -> None:
        """End, exactly once. `usage` is the cost of the generation that it read, which may still be stopping.

        The request that leads the generation counts the tokens.
        """
        raise NotImplementedError

    @property
    def state(self) -> State:
        """Its state in the book."""
        if self.generation.leader is not self:
            return State.JOINED
        return State.RUNNING if self.generation.has_slot else State.QUEUED

    @property
    def lane_key(self) -> tuple[str, bool]:
        """Key of its lane; prefetches have one beside that of typed requests."""
        return self.lane, self.trigger is Trigger.PREFETCH

    def serves(self, newer: "LiveRequest") -> bool:
        """Return whether its generation, running or to come, serves a newer request, whose user has typed on."""
        generation = self.generation
        older = generation.continuation if generation.has_slot else self.continuation
        if older is None or newer.continuation is None or generation.is_over:
            return False
        return typed_through(older, generation, newer.continuation) is not None

    def begin_reading(self, source: GenerationSource, now: float) -> None:
        """Read its generation, which has a slot, from the beginning or, after a reattach, after the typed text."""
        generation, marks, typed = self.generation, self.marks, ""
        if source is GenerationSource.REATTACHED:
            assert generation.continuation is not None
            assert self.continuation is not None
            typed = typed_since(generation.continuation, self.continuation) or ""
            self.typed = TypedPrefixFilter(typed)
        is_prompted = source is GenerationSource.REATTACHED or generation.has_prompt
        marks.started, marks.prompted = now, now if is_prompted else None
        marks.source, marks.generation_trace, marks.num_typed = source, generation.trace, len(typed)

    def read(self, text: str, now: float) -> str:
        """Take newly generated text; return the part of it that the user has not typed."""
        marks, typed = self.marks, self.typed
        if typed is not None:
            text = typed.feed(text)
            if typed.is_ahead or typed.has_diverged or not (text or marks.first_output is not None):
                return ""
        if marks.first_output is None:
            marks.first_output = now
            marks.tokens_at_first_output = self.generation.num_tokens
        marks.last_output = now
        return text

    def has_diverged(self, finish: FinishReason | None) -> bool:
        """Return whether its generation is of no use to it; `finish` is the end of that, None if it continues.

        Either the generated text differs from the typed text, or it has ended before it had text after the typed text.
        """
        typed = self.typed
        if typed is None:
            return False
        is_cut_short = finish is FinishReason.LENGTH and self.marks.first_output is None
        return typed.has_diverged or is_cut_short or (finish is not None and typed.is_ahead)

    def start_over(self, now: float) -> None:
        """Forget the stages that it has passed: it will be answered from another generation."""
        marks = self.marks
        marks.started = marks.prompted = marks.first_output = marks.last_output = None
        marks.tokens_at_first_output = marks.num_typed = 0
        marks.source = marks.generation_trace = None
        self.queued_at, self.has_token, self.typed = now, False, None


@dataclass(slots=True, eq=False)
class Generation:
    """What the engine generates for one prompt, running or to come, and the requests that read it."""

    leader: LiveRequest | None
    """The request that holds the slot or waits for it; None if no request reads the generation any more."""
    answer_key: Hashable | None
    """Of the request that it is for: its whole text answers all requests with this key."""
    joined: dict[str, LiveRequest] = field(default_factory=dict)
    """The other requests that read it."""
    id: str = ""
    """That of the request that it was started for."""
    has_slot: bool = False
    slot_since: float = 0.0
    """Clock seconds."""
    continuation: Continuation | None = None
    """The text that it continues; None if no request can reattach to it."""
    trace: TraceContext | None = None
    """The trace of the request that it was started for."""
    has_prompt: bool = False
    """Whether its prompt is built."""
    text: str = ""
    """All generated text, before any text rule."""
    num_tokens: int = 0
    num_prompt_tokens: int = 0
    num_new_tokens: int = 0
    """Prompt tokens that the engine computes: an estimate until the first output counts the cached ones."""
    is_over: bool = False
    """Whether it will have no more text. The engine may still be releasing it."""
    was_aborted: bool = False
    """Whether it stopped before its last reader had a whole answer."""
    diverged: LiveRequest | None = None
    """The request that waits for its slot, after it diverged from the text."""
    last: Output | None = None
    last_at: float = 0.0
    charge: Charge | None = None
    """To the account of its owner, while it runs and a request reads it."""

    @property
    def readers(self) -> list[LiveRequest]:
        """The requests that read it; the leader is the last."""
        return [*self.joined.values(), self.leader] if self.leader is not None else []

    def start(self, leader: LiveRequest, now: float) -> None:
        """Take a slot, with the prompt of its leader."""
        self.id, self.has_slot, self.slot_since = leader.id, True, now
        self.continuation, self.trace, self.num_new_tokens = (
            leader.continuation, leader.marks.trace, leader.num_new_tokens,
        )  # fmt: skip
        leader.begin_reading(GenerationSource.OWN, now)

    def prompt_ready(self, num_tokens: int, num_new_tokens: int, now: float) -> None:
        """Note that its prompt is built."""
        self.has_prompt, self.num_prompt_tokens, self.num_new_tokens = True, num_tokens, num_new_tokens
        for request in self.readers:
            if request.marks.prompted is None:  # else it has reattached meanwhile
                request.marks.prompted = now

    def add(self, output: Output, now: float) -> float | None:
        """Take an output in; return the seconds since the one before it, None for the first."""
        step_s = None if self.last is None else now - self.last_at
        if self.last is None:
            self.num_new_tokens = self.num_prompt_tokens - output.cached_prompt_tokens
        self.last, self.last_at = output, now
        self.num_tokens += output.num_tokens
        self.text += output.text
        return step_s

    def usage(self, *, is_shared: bool) -> Usage:
        """Return its cost so far; `is_shared` if another request counts it."""
        last = self.last
        if not self.has_slot:
            return Usage()
        return Usage(
            prompt_tokens=self.num_prompt_tokens,
            cached_prompt_tokens=last.cached_prompt_tokens if last else 0,
            completion_tokens=self.num_tokens,
            drafted_tokens=last.drafted_tokens if last else 0,
            accepted_draft_tokens=last.accepted_draft_tokens if last else 0,
            is_shared=is_shared,
        )
