"""The book of live requests and generations: a pure state machine. Every call returns the actions to carry out.

The book is the only owner of this state: which requests live, which generations run, and which request reads which.

A live request is in one of three states, and leaves the book from any of them. QUEUED and RUNNING requests lead a
generation, which waits for a slot or has one; JOINED requests read the generation of another one, now or when it runs.

    state     event        becomes    actions
    -         submit       QUEUED     -
    -         submit       JOINED     Join, if the generation runs: it answers another live request with the same answer
    -         submit       RUNNING    Reattach: a running generation serves this request as well as the older one
    -         submit       JOINED     Reattach: as before; the older one has joined the generation
    -         submit       (gone)     Finish: superseded (an older sequence than the lane's) or shed
    -         answer       (gone)     Finish: answered without a generation, or turned away
    QUEUED    slot free    RUNNING    Start, and Join for each request that has joined it
    QUEUED    submit       JOINED     - ; the newcomer has the same answer and goes before it
    QUEUED    end          (gone)     Finish; the first of those that have joined it is QUEUED in its place
    RUNNING   reattach     (gone)     Finish: superseded; the newer request leads the generation now
    RUNNING   output       RUNNING    Text
    RUNNING   diverged     QUEUED     Report; its generation is of no use to it, and stops if no other request reads it
    RUNNING   end          (gone)     Finish, and Abort if no other request reads the generation
    RUNNING   stopped      (gone)     Finish, also of those that have joined it
    JOINED    output       JOINED     Text
    JOINED    end          (gone)     Finish
    JOINED    diverged     QUEUED     Report; it had reattached
    JOINED    reattach     (gone)     Finish: superseded

"end" is a supersede, a cancel, a deadline, a shed, or the end of an answer whose generation goes on for others. If the
request led its generation, the first of those that have joined it leads it then. A request gets exactly one Finish. A
generation takes a slot at Start and keeps it until it has stopped, because an engine that was told to stop has not
stopped yet. A request that diverged is taken in like a new one.

A lane holds at most one live request: a newer one supersedes it. Prefetches have a lane of their own beside it, so they
never supersede a typed request. Slots are given by trigger, EXPLICIT before AUTOMATIC before PREFETCH, and within a
trigger by the `order`; but a tenant, or a user of a tenant, that is over its share of the tokens computed goes after
those that are not.

With shedding on, the book sheds: a request that can't have its first token in time any more; one that is predicted not
to have it; one with a slot but without a token when its time is up, while another waits; and, when the queue is full,
the last of the owner furthest over its share, else the last of the lowest class. An engine with a free slot sheds
nothing: its next requests are how the book learns the engine's latency.
"""

from dataclasses import dataclass, field

from completion_server.core.events import (
    EngineStalled,
    GenerationAborted,
    GenerationDiverged,
    GenerationSource,
)
from completion_server.core.outcome import FinishReason, Outcome, ShedReason
from completion_server.engine.interface import Output
from completion_server.scheduling.actions import (
    CANCELLED,
    DEADLINE,
    SUPERSEDED,
    Abort,
    Action,
    Finish,
    Join,
    Reattach,
    Report,
    Start,
    Text,
)
from completion_server.scheduling.fair_queue import FairQueue
from completion_server.scheduling.generations import Generations
from completion_server.scheduling.lanes import Lanes
from completion_server.scheduling.latency import LatencyEstimates
from completion_server.scheduling.limiter import ConcurrencyLimiter
from completion_server.scheduling.queue import QueueOrder, earliest_deadline
from completion_server.scheduling.requests import Generation, LiveRequest, State
from completion_server.scheduling.shedding import DeadlineWatch, Shedder, Shedding

_ABANDONED = (FinishReason.SUPERSEDED, FinishReason.CANCELLED, FinishReason.STOP, FinishReason.LENGTH)
"""Ends that don't depend on the queue's length. A queued request with STOP or LENGTH was answered from a cache."""
_SPARE_SHARE = 1 / 3
"""Of the time that first tokens may take: an engine that needs less for the prompts at hand has room to spare."""
_FINISH_REASONS: dict[str | None, FinishReason | None] = {
    None: None,
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
}


class IllegalTransitionError(Exception):
    """An event is not allowed in the state of its request or generation: a bug in the caller."""


@dataclass(slots=True)
class Book:
    """The live requests, their lanes, the queue, the slots and the generations. All times are clock seconds."""

    num_slots: int
    max_queued: int
    order: QueueOrder = earliest_deadline
    shedding: Shedding = Shedding.LATE
    max_retry_after_ms: int = 1000
    """The longest time after which a shed caller may be asked to retry."""
    limiter: ConcurrencyLimiter | None = None
    """Adapts the number of slots to the engine; None leaves it."""
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
        """Requests whose Finish is still to come."""
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
        """The requests whose Finish is still to come."""
        return list(self._requests.values())

    def readers(self, generation_id: str) -> list[str]:
        """Return the ids of the requests that read a generation with a slot, that of its leader last."""
        return [each.id for each in self._require(generation_id).readers]

    def goes_on(self, generation_id: str) -> bool:
        """Return whether a request still needs text of a generation with a slot."""
        generation = self._require(generation_id)
        return generation.leader is not None and generation.outcome is None

    def first_token_s(self, num_new_tokens: int) -> float:
        """Return when a newcomer's first token is expected, behind all prompts before it."""
        num_ahead = self._queue.num_new_tokens
        num_ahead += sum(each.num_new_tokens for each in self._generations.running.values() if each.last is None)
        return self.latency.first_token_after(num_ahead + num_new_tokens)

    # Requests

    def submit(self, request: LiveRequest, now: float) -> list[Action]:
        """Take a new request in, or end it at once. It reattaches to a running generation that serves it."""
        if request.id in self._requests or request.id in self._generations.running:
            msg = f"request {request.id} is in the book already"
            raise IllegalTransitionError(msg)
        holder = self._lanes.holder(request.lane_key)
        if self._lanes.is_overtaken(request, now):
            return [Finish(request.id, SUPERSEDED)]
        request.queued_at, serving = now, self._lanes.serving(request)
        self._requests[request.id] = request
        if serving is not None and serving.generation.has_slot:
            superseded = [] if holder is None or holder is serving else self._end(holder, SUPERSEDED, now)
            return superseded + self._reattach(request, serving, now)
        actions: list[Action] = []
        for older in [serving] if serving is holder else [serving, holder]:
            if older is not None:
                actions += self._end(older, SUPERSEDED, now)
        found = self._generations.find(request.answer_key)
        if holder is None and found is None and self.num_occupied >= self.num_slots:
            actions += self._make_room(request, now)
            if request.id not in self._requests:
                return actions
        self._lanes.enter(request)
        return actions + self._take_in(request, found, now)

    def answer(self, request: LiveRequest, outcome: Outcome, now: float) -> list[Action]:
        """End a new request at once, without a generation. It supersedes the older one of its lane all the same."""
        holder = self._lanes.holder(request.lane_key)
        if self._lanes.is_overtaken(request, now):
            return [Finish(request.id, SUPERSEDED)]
        superseded = [] if holder is None else self._end(holder, SUPERSEDED, now)
        return [*superseded, Finish(request.id, outcome)]

    def supersede(self, lane: str, stamp: int, now: float) -> list[Action]:
        """End the live requests of a lane that are older than `stamp`, the stamp of a request on another replica.

        Prefetches of the lane, which have no stamp, end too: the user is elsewhere.
        """
        actions: list[Action] = []
        for holder in [each for each in self._lanes.on(lane) if each.stamp < stamp]:
            actions += self._end(holder, SUPERSEDED, now)
        return actions

    def end(self, request_id: str, outcome: Outcome, now: float) -> list[Action]:
        """End a live request. Does nothing if the request is not live any more, because it has had its Finish."""
        request = self._requests.get(request_id)
        return [] if request is None else self._end(request, outcome, now)

    def answered(self, request_id: str, outcome: Outcome, now: float) -> list[Action]:
        """End a live request whose answer is complete. The last reader of a generation ends when that has stopped."""
        request = self._requests.get(request_id)
        if request is None:
            return []
        if request.generation.joined:
            return self._end(request, outcome, now)
        request.generation.outcome = outcome
        self._generations.close(request.generation)
        return []

    def tick(self, now: float) -> list[Action]:
        """End requests that are past their deadline, or have no time left for a first token."""
        actions: list[Action] = []
        while (request := self._watch.pop_due(now)) is not None:
            is_past = request.deadline.is_past(now)
            actions += self._end(request, DEADLINE if is_past else self._unreachable(request), now)
        return actions

    # Generations

    def prompt_ready(self, generation_id: str, num_tokens: int, num_new_tokens: int, now: float) -> None:
        """Note that the prompt of a generation is built, and how many of its tokens the engine will have to compute."""
        self._require(generation_id).prompt_ready(num_tokens, num_new_tokens, now)

    def output(self, generation_id: str, output: Output, now: float) -> list[Action]:
        """Give an output of the engine to the requests that read the generation."""
        generation, actions = self._require(generation_id), list[Action]()
        if stalled_s := self.latency.progressed(now):
            actions.append(Report(EngineStalled(stalled_s)))
        step_s = generation.add(output, now)
        if step_s is None:
            self._queue.computed(generation)
        else:
            is_stall = self.latency.stalls.has_delayed(now - step_s)
            actions += self._follow_engine(now, None if is_stall else step_s)
        finish = _FINISH_REASONS[output.finish]
        if finish is not None:
            self._generations.close(generation)
        for request in generation.readers:
            if request.id not in self._requests:  # ended, because a slot was taken from it
                continue
            text, first = self._read(request, output.text, now)
            actions += first
            if request.has_diverged(finish):
                actions += self._diverge(request, now)
            elif text or finish is not None:
                actions.append(Text(request.id, text, finish))
        return actions + self._fill(now) if self._is_held and step_s is None else actions

    def stopped(self, generation_id: str, outcome: Outcome | None, now: float) -> list[Action]:
        """Free the slot of a generation that has stopped. `outcome` ends its readers; None if it did not fail."""
        generation, actions = self._require(generation_id), list[Action]()
        if generation.aborted_at is not None:
            actions.append(Report(GenerationAborted(now - generation.aborted_at)))
            actions += self._follow_engine(now)
        readers = self._generations.remove(generation)
        self._queue.settle(generation)
        for request in readers:
            self._lanes.leave(request)
            self._watch.forgive(request)
            del self._requests[request.id]
            usage = generation.usage(is_shared=request is not readers[0])
            actions.append(Finish(request.id, outcome or generation.outcome or CANCELLED, usage))
        self.latency.freed_slot(generation.slot_since, now)
        actions += self._fill(now)
        # Another request went before the one that was to have the slot.
        diverged = generation.diverged
        if diverged is not None and diverged.inherits_slot:
            diverged.inherits_slot = False
            if diverged.id in self._requests:
                self._watch.add(diverged)
        return actions

    def resize(self, num_slots: int, now: float) -> list[Action]:
        """Change the number of slots. Requests that hold one too many keep it."""
        self.num_slots = num_slots
        return self._fill(now)

    def _reattach(self, request: LiveRequest, older: LiveRequest, now: float) -> list[Action]:
        """Have a newcomer read the generation of an older request in its place, with its slot if it has one."""
        generation = self._generations.replace(older, request)
        self._watch.forgive(older)
        self._lanes.leave(older)
        self._lanes.enter(request)
        del self._requests[older.id]
        request.begin_reading(GenerationSource.REATTACHED, now)
        text, first = self._catch_up(request, now)
        reattach = Reattach(request.id, generation.id, generation.num_tokens, text)
        self._watch.add(request)
        return [reattach, Finish(older.id, SUPERSEDED), *first, *self._fill(now)]

    def _take_in(self, request: LiveRequest, found: Generation | None, now: float) -> list[Action]:
        """Let a request join a generation with the same answer, or wait for a slot."""
        self._generations.take_in(request, found)
        actions = self._join(request, now) if found is not None and found.has_slot else []
        actions += self._fill(now)
        if request.state is not State.RUNNING:  # after `_fill`, which may update the latency estimates
            self._watch.add(request)
        return actions

    def _join(self, request: LiveRequest, now: float) -> list[Action]:
        """Have a request that has joined a generation with a slot read it."""
        request.begin_reading(GenerationSource.JOINED, now)
        text, first = self._catch_up(request, now)
        generation = request.generation
        return [Join(request.id, generation.id, generation.num_tokens, text), *first]

    def _catch_up(self, request: LiveRequest, now: float) -> tuple[str, list[Action]]:
        """Have a request read the text generated so far."""
        generation = request.generation
        return self._read(request, generation.text, now) if generation.num_tokens else ("", [])

    def _read(self, request: LiveRequest, text: str, now: float) -> tuple[str, list[Action]]:
        """Have a request read text; return the part that its user has not typed."""
        text = request.read(text, now)
        if request.has_token or request.marks.first_output is None:
            return text, []
        request.has_token = True
        self._watch.forgive(request)
        generation = request.generation
        if generation.leader is not request:
            return text, []
        if request.typed is None:
            self.latency.had_first_token(generation.slot_since, now, generation.num_new_tokens)
        return text, self._follow_engine(now)

    def _diverge(self, request: LiveRequest, now: float) -> list[Action]:
        """Have a request wait for another generation: its user typed other text than the one that it reads has."""
        generation = request.generation
        self._leave(request)
        num_wasted = generation.num_tokens if generation.leader is None else 0
        request.start_over(now)
        if generation.leader is None:
            generation.diverged, request.inherits_slot = request, True
        found = self._generations.find(request.answer_key)
        return [Report(GenerationDiverged(num_wasted)), *self._take_in(request, found, now)]

    def _end(self, request: LiveRequest, outcome: Outcome, now: float) -> list[Action]:
        """End a live request; the generation that it read goes on if another request reads it."""
        state, generation = request.state, request.generation
        self._lanes.leave(request)
        del self._requests[request.id]
        self._leave(request)
        if state is State.QUEUED:
            self.latency.left_queue(now - request.queued_at, abandoned=outcome.reason in _ABANDONED)
        finish = Finish(request.id, outcome, generation.usage(is_shared=generation.leader is not None))
        if state is not State.RUNNING or generation.leader is not None:
            return [finish]
        generation.aborted_at = now
        if not request.has_token and request.typed is None:
            self.latency.gave_up(generation.slot_since, now, generation.num_new_tokens)
        return [finish, Abort(generation.id)]

    def _leave(self, request: LiveRequest) -> None:
        """Have a request read its generation no more. If it led it, one that has joined it leads it now."""
        self._watch.forgive(request)
        generation, successor = request.generation, self._generations.leave(request)
        if successor is not None:
            self._watch.add(successor)
        elif generation.has_slot and generation.leader is None:
            self._queue.settle(generation)

    def _fill(self, now: float) -> list[Action]:
        """Give free slots to waiting requests that can still have their first token in time."""
        actions: list[Action] = []
        self._is_held = False
        while self.num_occupied < self.num_slots and len(self._queue):
            within = self._queue.first()
            request = within or self._queue.least_over_share()
            if request.queued_at < now and self._shedder.is_unreachable(request, now):
                actions += self._end(request, self._unreachable(request), now)
                continue
            if within is None and not self._has_room_to_spare(request):
                self._is_held = True
                break
            generation = self._generations.start(request, now)
            self.latency.left_queue(now - request.queued_at, abandoned=False)
            self.latency.took_slot(now)
            self._watch.add(request)
            actions.append(Start(generation.id))
            for joined in list(generation.joined.values()):
                actions += self._join(joined, now)
        return actions + self._reclaim(now)

    def _has_room_to_spare(self, request: LiveRequest) -> bool:
        """Return whether the engine could compute one more prompt in a part of the time that first tokens may take."""
        prompts = [each.num_new_tokens for each in self._queue.prompts]
        if self.limiter is None or not prompts:
            return True
        first_token_s = self.latency.first_token_after(sum(prompts) + request.num_new_tokens)
        return first_token_s <= _SPARE_SHARE * self.limiter.first_token_s

    def _reclaim(self, now: float) -> list[Action]:
        """Take slots from requests past their budget for waiting ones, less the slots that are coming free already."""
        actions, past_budget = list[Action](), self._watch.past_budget
        if not past_budget:
            return actions
        num_missing = self.num_live - self.num_joined - self.num_occupied
        for request in past_budget:
            if num_missing > 0:
                generation = request.generation
                actions += self._end(request, self._unreachable(request), now)
                num_missing -= generation.leader is None  # else another request has its slot now
        return actions

    def _follow_engine(self, now: float, step_s: float | None = None) -> list[Action]:
        """Adapt the number of slots to the engine's latest steps and first tokens."""
        if self.limiter is None or not self.limiter.observe(step_s):
            return []
        num_slots = self.limiter.adjust(self.latency.first_token_s, self.num_occupied)
        return self.resize(num_slots, now) if num_slots != self.num_slots else []

    def _make_room(self, request: LiveRequest, now: float) -> list[Action]:
        """Shed a newcomer that may not wait, or the request that gives way to it."""
        shed = self._shedder.make_room(request, now, self.num_slots, has_room=self._generations.has_room)
        if shed is None:
            return []
        other, outcome = shed
        if other is not request:
            return self._end(other, outcome, now)
        del self._requests[request.id]
        return [Finish(request.id, outcome)]

    def _unreachable(self, request: LiveRequest) -> Outcome:
        return self._shedder.outcome(request, ShedReason.DEADLINE_UNREACHABLE, self.num_slots)

    def _require(self, generation_id: str) -> Generation:
        generation = self._generations.running.get(generation_id)
        if generation is None:
            msg = f"generation {generation_id} has no slot"
            raise IllegalTransitionError(msg)
        return generation
