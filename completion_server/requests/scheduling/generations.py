"""The generations of the book: which of them run, which wait, and which requests lead and join them. Pure."""

from collections.abc import Hashable

from completion_server.requests.scheduling.queue import RequestQueue
from completion_server.requests.scheduling.requests import Generation, LiveRequest


class IllegalTransitionError(Exception):
    """An event is not allowed in the state of its request or generation: a bug in the caller."""


class Generations:
    """The running generations by id, those that can be joined by answer key, and the queue of those without a slot.

    One generation for each key at most can be joined. A request without a key joins none and is joined by none, but may
    reattach in the place of a request that leads or has joined one.
    """

    def __init__(self, queue: RequestQueue, max_queued: int) -> None:
        """Begin with none. At most `max_queued` requests may wait in `queue`, or for the answer of another request."""
        self._queue = queue
        self._max_queued = max_queued
        self._open: dict[Hashable, Generation] = {}
        self.running: dict[str, Generation] = {}
        """Those with a slot, by id, until they have stopped."""
        self.num_joined = 0
        """Requests that have joined the generation of another one."""

    @property
    def has_room(self) -> bool:
        """Whether one more request may wait."""
        return len(self._queue) + self.num_joined < self._max_queued

    def require(self, generation: Generation) -> None:
        """Check that a generation has a slot. Raises IllegalTransitionError: it has none."""
        if self.running.get(generation.id) is not generation:
            msg = f"generation {generation.id} has no slot"
            raise IllegalTransitionError(msg)

    def find(self, key: Hashable | None) -> Generation | None:
        """Return the generation that a request with this key may join, if there is room for one."""
        return self._open.get(key) if key is not None and self.has_room else None

    def take_in(self, request: LiveRequest, found: Generation | None) -> None:
        """Let a request join the generation that was found for it, or wait for a slot as a leader."""
        leader = None if found is None else found.leader
        if found is None or leader is None:
            request.generation = Generation(request, request.answer_key)
            self._queue.add(request)
            if request.answer_key is not None:
                self._open.setdefault(request.answer_key, request.generation)
        elif found.has_slot or self._queue.rank(leader) <= self._queue.rank(request):
            self._join(request, found)
        else:
            self._queue.remove(leader)
            self._queue.add(request)
            found.leader = request
            request.generation = found
            self._join(leader, found)

    def start(self, request: LiveRequest, now: float) -> Generation:
        """Give a slot to the generation that a waiting request leads."""
        self._queue.start(request)
        request.inherits_slot = False
        generation = request.generation
        generation.start(request, now)
        self.running[generation.id] = generation
        return generation

    def replace(self, older: LiveRequest, newer: LiveRequest) -> Generation:
        """Have a newer request read a generation in the place of an older one."""
        generation = newer.generation = older.generation
        if generation.leader is older:
            generation.leader = newer
        else:
            del generation.joined[older.id]
            generation.joined[newer.id] = newer
        return generation

    def leave(self, request: LiveRequest) -> LiveRequest | None:
        """Have a request read its generation no more, or wait for it; return the one that leads it instead, or None.

        That is the first, in the order of the queue, of those that have joined it.
        """
        generation = request.generation
        if generation.leader is not request:
            self._unjoin(generation, request)
            return None
        if not generation.has_slot:
            self._queue.remove(request)
        if not generation.joined:
            generation.leader = None
            self.close(generation)
            return None
        first = min(generation.joined.values(), key=self._queue.rank)
        self._unjoin(generation, first)
        generation.leader = first
        if not generation.has_slot:
            self._queue.add(first)
        return first

    def close(self, generation: Generation) -> None:
        """Let no other request read a generation: it has no more text, or no request reads it."""
        generation.is_over = True
        if self._open.get(generation.answer_key) is generation:
            del self._open[generation.answer_key]

    def remove(self, generation: Generation) -> list[LiveRequest]:
        """Forget a generation that has stopped; return the requests that read it, the leader first."""
        self.close(generation)
        del self.running[generation.id]
        readers = [*generation.readers[-1:], *generation.joined.values()]
        self.num_joined -= len(generation.joined)
        generation.leader = None
        generation.joined.clear()
        return readers

    def _join(self, request: LiveRequest, generation: Generation) -> None:
        request.generation = generation
        generation.joined[request.id] = request
        self.num_joined += 1

    def _unjoin(self, generation: Generation, request: LiveRequest) -> None:
        del generation.joined[request.id]
        self.num_joined -= 1
