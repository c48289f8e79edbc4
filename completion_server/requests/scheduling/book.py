"""The book of live requests and generations: a state machine that acts by calls on requests and on the engine.

The book is the only owner of this state: which requests live, which generations run, and which request reads which. It
waits for nothing, and its callers give the time. What it calls must neither raise nor call the book:

    request.receive   new text, or the end of the text; returns the outcome if the answer is complete with that
    request.end       the end of the request, exactly once
    engine.start      begin the generation that a request leads, which has a slot now
    engine.abort      stop a generation, which no request needs any more; report `stopped` when it has stopped

A live request is in one of three states, and leaves the book from any of them. QUEUED and RUNNING requests lead a
generation, which waits for a slot or has one; JOINED requests read the generation of another one, now or when it runs.

    state     event        becomes    calls
    -         submit       QUEUED     -
    -         submit       JOINED     receive, if the generation runs: it answers another request with the same answer
    -         submit       RUNNING    receive: reattached; a running generation serves it as well as the older request
    -         submit       JOINED     receive: reattached, as before; the older one had joined the generation
    -         submit       (gone)     end: superseded (an older sequence than the lane's) or shed
    -         answer       (gone)     end: answered without a generation, or turned away
    QUEUED    slot free    RUNNING    start, and receive for each request that has joined it
    QUEUED    submit       JOINED     - ; the newcomer has the same answer and goes before it
    QUEUED    end          (gone)     end; the first of those that have joined it is QUEUED in its place
    RUNNING   reattach     (gone)     end: superseded; the newer request leads the generation now
    RUNNING   output       RUNNING    receive
    RUNNING   diverged     QUEUED     abort, if no other request reads the generation, which is of no use to it
    RUNNING   end          (gone)     end, and abort if no other request reads the generation
    RUNNING   stopped      (gone)     end, also of those that have joined it
    JOINED    output       JOINED     receive
    JOINED    end          (gone)     end
    JOINED    diverged     QUEUED     - ; it had reattached
    JOINED    reattach     (gone)     end: superseded

"end" is a supersede, a cancel, a deadline, a shed, or the end of an answer. If the request led its generation, the
first of those that have joined it leads it then. A generation takes a slot at its start and keeps it until it has
stopped, because an engine that was told to stop has not stopped yet. A request that diverged is taken in like a new
one.

A lane holds at most one live request: a newer one supersedes it. Prefetches have a lane of their own beside it, so they
never supersede a typed request. Slots are given by trigger, EXPLICIT before AUTOMATIC before PREFETCH, and within a
trigger by the `order`; but a tenant, or a user of a tenant, that is over its share of the tokens computed goes after
those that are not.

With shedding on, the book sheds a request that can't have its first token in time, or is predicted not to; one with a
slot but without a token when its time is up, while another waits; and, when the queue is full, the last of the owner
furthest over its share, else of the lowest class. An engine with a free slot sheds nothing: the book learns from it.
"""

import logging
from dataclasses import dataclass, field
from typing import Protocol

from completion_server.core.events import (
    Emit,
    EngineStalled,
    GenerationDiverged,
    GenerationJoined,
    GenerationReattached,
    GenerationSource,
)
from completion_server.core.outcome import CANCELLED, DEADLINE, SUPERSEDED, FinishReason, Outcome, ShedReason, Usage
from completion_server.engine.interface import Output
from completion_server.requests.scheduling.fair_queue import FairQueue
from completion_server.requests.scheduling.generations import Generations, IllegalTransitionError
from completion_server.requests.scheduling.lanes import Lanes
from completion_server.requests.scheduling.latency import LatencyEstimates
from completion_server.requests.scheduling.limiter import ConcurrencyLimiter
from completion_server.requests.scheduling.queue import QueueOrder, earliest_deadline
from completion_server.requests.scheduling.requests import Generation, LiveRequest, State
from completion_server.requests.scheduling.shedding import DeadlineWatch, Shedder, Shedding

logger = logging.getLogger(__name__)

_ABANDONED = (FinishReason.SUPERSEDED, FinishReason.CANCELLED, FinishReason.STOP, FinishReason.LENGTH)
"""Ends that don't depend on the queue's length. A queued request with STOP or LENGTH was answered from a cache."""
_ANSWERED = (FinishReason.STOP, FinishReason.LENGTH)
_SPARE_SHARE = 1 / 3
"""Of the time that first tokens may take: an engine that needs less for the prompts at hand has room to spare."""
_FINISH_REASONS: dict[str | None, FinishReason | None] = {
    None: None,
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
}


class Executor(Protocol):
    """Runs the generations of a book. It reports `prompt_ready`, each `output`, and `stopped` once for each."""

    def start(self, generation: Generation, /) -> None:
        """Begin a generation with the prompt of its leader."""
        ...

    def abort(self, generation: Generation, /) -> None:
        """Stop a generation. It may have had its last output already."""
        ...


@dataclass(slots=True)
class Book:
    """The live requests, their lanes, the queue, the slots and the generations. All times are clock seconds."""

    engine: Executor
    num_slots: int
    max_queued: int
    order: QueueOrder = earliest_deadline
    shedding: Shedding = Shedding.LATE
    max_retry_after_ms: int = 1000
    """The longest time after which a shed caller may be asked to retry."""
    limiter: ConcurrencyLimiter | None = None
    """Adapts the number of slots to the engine; None leaves it."""
    emit: Emit = lambda _event: None
    latency: LatencyEstimates = field(default_factory=LatencyEstimates)
    _requests: dict[str, LiveRequest] = field(default_factory=dict, init=False)
    _lanes: Lanes = field(default_factory=Lanes, init=False)
    _queue: FairQueue = field(init=False)
    _generations: Generations = field(init=False)
    _shedder: Shedder = field(init=False)
    _watch: DeadlineWatch = field(init=False)
    _is_held: bool = field(default=False, init=False)
    """Whether requests of owners over their share wait until the engine has computed a prompt."""

    def __post_init__(self) -> None:
        """Begin empty."""
        self._queue = FairQueue(self.order)
        self._shedder = Shedder(self.shedding, self.latency, self._queue, self.max_retry_after_ms, self.max_queued)
        self._generations = Generations(self._queue, self.max_queued)
        self._watch = DeadlineWatch(self._shedder, self._requests)

    @property
    def num_occupied(self) -> int:
        """Slots taken, by generations that requests read and by those that are stopping."""
        return len(self._generations.running)

    @property
    def num_queued(self) -> int:
        """Requests that wait for a slot."""
        return len(self._queue)

    @property
    def num_joined(self) -> int:
        """Requests that the generation of another one answers, now or when it has a slot."""
        return self._generations.num_joined

    @property
    def num_live(self) -> int:
        """Requests that have not ended."""
        return len(self._requests)

    @property
    def is_idle(self) -> bool:
        """Whether no request is live and no slot is taken."""
        return not (self._requests or self._generations.running)

    @property
    def next_tick(self) -> float | None:
        """The latest time at which `tick` must be called."""
        return self._watch.next

    @property
    def live_requests(self) -> list[LiveRequest]:
        """The requests that have not ended."""
        return list(self._requests.values())

    def first_token_s(self, num_new_tokens: int) -> float:
        """Return when a newcomer's first token is expected, behind all prompts before it."""
        num_ahead = self._queue.num_new_tokens
        num_ahead += sum(each.num_new_tokens for each in self._generations.running.values() if each.last is None)
        return self.latency.first_token_after(num_ahead + num_new_tokens)

    # Requests

    def submit(self, request: LiveRequest, now: float) -> None:
        """Take a new request in, or end it at once. It reattaches to a running generation that serves it."""
        if request.id in self._requests or request.id in self._generations.running:
            msg = f"request {request.id} is in the book already"
            raise IllegalTransitionError(msg)
        holder = self._lanes.holder(request.lane_key)
        if self._lanes.is_overtaken(request, now):
            request.end(SUPERSEDED, Usage())
            return
        request.queued_at, serving = now, self._lanes.serving(request)
        self._requests[request.id] = request
        if serving is not None and serving.generation.has_slot:
            if holder is not None and holder is not serving:
                self._end(holder, SUPERSEDED, now)
            self._reattach(request, serving, now)
        else:
            self._supersede_and_wait(request, serving, holder, now)

    def _supersede_and_wait(
        self, request: LiveRequest, serving: LiveRequest | None, holder: LiveRequest | None, now: float
    ) -> None:
        """End the older requests of a newcomer's lane, and let it wait if there is room."""
        for older in [serving] if serving is holder else [serving, holder]:
            if older is not None:
                self._end(older, SUPERSEDED, now)
        found = self._generations.find(request.answer_key)
        if holder is None and found is None and self.num_occupied >= self.num_slots:
            self._make_room(request, now)
            if request.id not in self._requests:
                return
        self._lanes.enter(request)
        self._take_in(request, found, now)

    def answer(self, request: LiveRequest, outcome: Outcome, now: float) -> None:
        """End a new request at once, without a generation. It supersedes the older one of its lane all the same."""
        holder = self._lanes.holder(request.lane_key)
        if self._lanes.is_overtaken(request, now):
            request.end(SUPERSEDED, Usage())
            return
        if holder is not None:
            self._end(holder, SUPERSEDED, now)
        request.end(outcome, Usage())

    def supersede(self, lane: str, stamp: int, now: float) -> None:
        """End the live requests of a lane that are older than `stamp`, the stamp of a request on another replica.

        Prefetches of the lane, which have no stamp, end too: the user is elsewhere.
        """
        for holder in [each for each in self._lanes.on(lane) if each.stamp < stamp]:
            self._end(holder, SUPERSEDED, now)

    def cancel(self, request_id: str, outcome: Outcome, now: float) -> None:
        """End a live request. Does nothing if the request has ended."""
        request = self._requests.get(request_id)
        if request is not None:
            self._end(request, outcome, now)

    def tick(self, now: float) -> None:
        """End requests that are past their deadline, or near it with text, or have no time left for a first token."""
        while (request := self._watch.pop_due(now)) is not None:
            if request.deadline.is_past(now):
                self._end(request, DEADLINE, now)
            elif not request.has_token:
                self._end(request, self._unreachable(request), now)
            elif (outcome := request.receive("", None)) is not None:
                self._end(request, outcome, now)
            else:
                self._watch.add(request, now)

    # Generations

    def prompt_ready(self, generation: Generation, num_tokens: int, num_new_tokens: int, now: float) -> None:
        """Note that the prompt of a generation is built, and how many of its tokens the engine will have to compute."""
        generation.prompt_ready(num_tokens, num_new_tokens, now)

    def output(self, generation: Generation, output: Output, now: float) -> None:
        """Give an output of the engine to the requests that read the generation."""
        self._generations.require(generation)
        is_first = generation.last is None
        self._learn_step(generation, generation.add(output, now), now)
        finish = _FINISH_REASONS[output.finish]
        if finish is not None:
            self._generations.close(generation)
        for request in generation.readers:
            if request.id not in self._requests:  # ended, because a slot was taken from it
                continue
            text = self._read(request, output.text, now)
            if request.has_diverged(finish):
                self._diverge(request, now)
            elif text or finish is not None:
                self._give(request, text, finish, now)
        if self._is_held and is_first:
            self._fill(now)

    def _learn_step(self, generation: Generation, step_s: float | None, now: float) -> None:
        """Learn how long a step took, None for a generation's first one."""
        if stalled_s := self.latency.progressed(now):
            logger.warning("the engine had sent nothing for %.1f s", stalled_s)
            self.emit(EngineStalled(stalled_s))
        if step_s is None:
            self._queue.computed(generation)
        else:
            is_stall = self.latency.stalls.has_delayed(now - step_s)
            self._follow_engine(now, None if is_stall else step_s)

    def stopped(self, generation: Generation, outcome: Outcome | None, now: float) -> None:
        """Free the slot of a generation that has stopped. `outcome` ends its readers; None if it did not fail."""
        self._generations.require(generation)
        if generation.was_aborted:
            self._follow_engine(now)
        readers = self._generations.remove(generation)
        self._queue.settle(generation)
        for request in readers:
            self._lanes.leave(request)
            self._watch.forgive(request)
            del self._requests[request.id]
            request.end(outcome or CANCELLED, generation.usage(is_shared=request is not readers[0]))
        self.latency.freed_slot(generation.slot_since, now)
        self._fill(now)
        # Another request went before the one that was to have the slot.
        diverged = generation.diverged
        if diverged is not None and diverged.inherits_slot:
            diverged.inherits_slot = False
            if diverged.id in self._requests:
                self._watch.add(diverged)

    def resize(self, num_slots: int, now: float) -> None:
        """Change the number of slots. Requests that hold one too many keep it."""
        self.num_slots = num_slots
        self._fill(now)

    def _reattach(self, request: LiveRequest, older: LiveRequest, now: float) -> None:
        """Have a newcomer read the generation of an older request in its place, with its slot if it has one."""
        generation = self._generations.replace(older, request)
        self._watch.forgive(older)
        self._lanes.leave(older)
        self._lanes.enter(request)
        del self._requests[older.id]
        self.emit(GenerationReattached(generation.num_tokens))
        self._begin_reading(request, GenerationSource.REATTACHED, now)
        older.end(SUPERSEDED, Usage())
        if request.id in self._requests:  # else the text that was there is its whole answer
            self._watch.add(request)
        self._fill(now)

    def _take_in(self, request: LiveRequest, found: Generation | None, now: float) -> None:
        """Let a request join a generation with the same answer, or wait for a slot."""
        self._generations.take_in(request, found)
        if found is not None and found.has_slot:
            self._join(request, now)
        self._fill(now)
        if request.id in self._requests and request.state is not State.RUNNING:
            self._watch.add(request)  # after `_fill`, which may update the latency estimates

    def _join(self, request: LiveRequest, now: float) -> None:
        """Have a request that has joined a generation with a slot read it."""
        self.emit(GenerationJoined(request.generation.num_tokens))
        self._begin_reading(request, GenerationSource.JOINED, now)

    def _begin_reading(self, request: LiveRequest, source: GenerationSource, now: float) -> None:
        """Have a request read a generation of another one, and the text generated so far."""
        request.begin_reading(source, now)
        generation = request.generation
        if generation.num_tokens and (text := self._read(request, generation.text, now)):
            self._give(request, text, None, now)

    def _read(self, request: LiveRequest, text: str, now: float) -> str:
        """Have a request read text; return the part that its user has not typed."""
        text = request.read(text, now)
        if request.has_token or request.marks.first_output is None:
            return text
        request.has_token = True
        self._watch.forgive(request)
        generation = request.generation
        if generation.leader is request:
            if request.typed is None:
                self.latency.had_first_token(generation.slot_since, now, generation.num_new_tokens)
            self._follow_engine(now)
        return text

    def _give(self, request: LiveRequest, text: str, finish: FinishReason | None, now: float) -> None:
        """Give a live request text, and end it if its answer is complete."""
        if request.id in self._requests:
            outcome = request.receive(text, finish)
            if outcome is not None:
                self._end(request, outcome, now)

    def _diverge(self, request: LiveRequest, now: float) -> None:
        """Have a request wait for another generation: its user typed other text than the one that it reads has."""
        generation = request.generation
        is_alone = not generation.joined
        self.emit(GenerationDiverged(generation.num_tokens if is_alone else 0))
        self._leave(request)
        request.start_over(now)
        if is_alone:
            generation.diverged, request.inherits_slot = request, True
        self._take_in(request, self._generations.find(request.answer_key), now)

    def _end(self, request: LiveRequest, outcome: Outcome, now: float) -> None:
        """End a live request; the generation that it read goes on if another request reads it."""
        state, generation = request.state, request.generation
        self._lanes.leave(request)
        del self._requests[request.id]
        if state is State.QUEUED:
            self.latency.left_queue(now - request.queued_at, abandoned=outcome.reason in _ABANDONED)
        is_last = state is State.RUNNING and not generation.joined
        request.end(outcome, generation.usage(is_shared=not is_last))
        if is_last and not (request.has_token and outcome.reason in _ANSWERED):
            generation.was_aborted = True
            if not request.has_token and request.typed is None:
                self.latency.gave_up(generation.slot_since, now, generation.num_new_tokens)
        self._leave(request)

    def _leave(self, request: LiveRequest) -> None:
        """Have a request read its generation no more. If it led it, one that has joined it leads it now."""
        self._watch.forgive(request)
        generation, successor = request.generation, self._generations.leave(request)
        if successor is not None:
            self._watch.add(successor)
        elif generation.has_slot and generation.leader is None:
            self._queue.settle(generation)
            self.engine.abort(generation)

    def _fill(self, now: float) -> None:
        """Give free slots to waiting requests that can still have their first token in time."""
        self._is_held = False
        while self.num_occupied < self.num_slots and len(self._queue):
            within = self._queue.first()
            request = within or self._queue.least_over_share()
            if request.queued_at < now and self._shedder.is_unreachable(request, now):
                self._end(request, self._unreachable(request), now)
                continue
            if within is None and not self._has_room_to_spare(request):
                self._is_held = True
                break
            generation = self._generations.start(request, now)
            self.latency.left_queue(now - request.queued_at, abandoned=False)
            self.latency.took_slot(now)
            self._watch.add(request)
            self.engine.start(generation)
            for joined in list(generation.joined.values()):
                self._join(joined, now)
        self._reclaim(now)

    def _has_room_to_spare(self, request: LiveRequest) -> bool:
        """Return whether the engine could compute one more prompt in a part of the time that first tokens may take."""
        prompts = [each.num_new_tokens for each in self._queue.prompts]
        if self.limiter is None or not prompts:
            return True
        first_token_s = self.latency.first_token_after(sum(prompts) + request.num_new_tokens)
        return first_token_s <= _SPARE_SHARE * self.limiter.first_token_s

    def _reclaim(self, now: float) -> None:
        """Take slots from requests past their budget for waiting ones, less the slots that are coming free already."""
        past_budget = self._watch.past_budget
        if not past_budget:
            return
        num_missing = self.num_live - self.num_joined - self.num_occupied
        for request in past_budget:
            if num_missing > 0:
                generation = request.generation
                self._end(request, self._unreachable(request), now)
                num_missing -= generation.leader is None  # else another request has its slot now

    def _follow_engine(self, now: float, step_s: float | None = None) -> None:
        """Adapt the number of slots to the engine's latest steps and first tokens."""
        if self.limiter is not None and self.limiter.observe(step_s):
            num_slots = self.limiter.adjust(self.latency.first_token_s, self.num_occupied)
            if num_slots != self.num_slots:
                self.resize(num_slots, now)

    def _make_room(self, request: LiveRequest, now: float) -> None:
        """Shed a newcomer that may not wait, or the request that gives way to it."""
        shed = self._shedder.make_room(request, now, self.num_slots, has_room=self._generations.has_room)
        if shed is None:
            return
        other, outcome = shed
        if other is not request:
            self._end(other, outcome, now)
            return
        del self._requests[request.id]
        request.end(outcome, Usage())

    def _unreachable(self, request: LiveRequest) -> Outcome:
        return self._shedder.outcome(request, ShedReason.DEADLINE_UNREACHABLE, self.num_slots)
