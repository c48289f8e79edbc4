"""Flights: which live requests one generation answers, because they ask for the same answer. Pure.

A flight is a generation, running or to come. Its leader holds the slot or waits for it; other requests have joined it.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field

from completion_server.scheduling.live.records import LiveRequest, State
from completion_server.scheduling.queue import TriggerQueues


@dataclass(slots=True, eq=False)
class _Flight:
    key: Hashable
    leader: LiveRequest
    joined: dict[str, LiveRequest] = field(default_factory=dict)


class Flights:
    """The flights, by their answer keys and by their requests, and the queue of those that wait for a slot.

    There is one open flight for each key at most.

    A request is in one flight at most. A request without a key leads none, but may reattach to one that has joined one.
    """

    def __init__(self, queues: TriggerQueues, max_queued: int) -> None:
        """Begin with none. At most `max_queued` requests may wait in `queues`, or for the answer of another request."""
        self._queues = queues
        self._max_queued = max_queued
        self._open: dict[Hashable, _Flight] = {}
        self._flights: dict[str, _Flight] = {}
        self.num_joined = 0
        """Requests that have joined the flight of another one."""

    @property
    def has_room(self) -> bool:
        """Whether one more request may wait."""
        return len(self._queues) + self.num_joined < self._max_queued

    def __len__(self) -> int:
        """Return how many requests lead a flight or have joined one."""
        return len(self._flights)

    def find(self, key: Hashable | None) -> LiveRequest | None:
        """Return the leader of the flight that a request with this key may join, if there is room for one."""
        flight = self._open.get(key) if key is not None and self.has_room else None
        return None if flight is None else flight.leader

    def joined(self, leader: LiveRequest) -> list[LiveRequest]:
        """Return the requests that have joined a request; none if it leads no flight."""
        flight = self._flights.get(leader.entry.id)
        return [] if flight is None or flight.leader is not leader else list(flight.joined.values())

    def has_generation(self, record: LiveRequest) -> bool:
        """Return whether a live request reads a generation that runs, its own or that of its leader."""
        if record.state is State.JOINED:
            record = self._flights[record.entry.id].leader
        return record.state is State.RUNNING

    def close(self, request_id: str) -> None:
        """Let no other request join the flight of a request: the generation is over."""
        flight = self._flights.get(request_id)
        if flight is not None and self._open.get(flight.key) is flight:
            del self._open[flight.key]

    def take_in(self, record: LiveRequest, leader: LiveRequest | None) -> None:
        """Let a request join the flight of a leader, or wait for a slot: without a leader, or if it goes before it."""
        if leader is None:
            self._queues.add(record.entry)
            key = record.entry.answer_key
            if key is not None and key not in self._open:
                self._open[key] = self._flights[record.entry.id] = _Flight(key, record)
        elif leader.state is State.RUNNING or self._queues.rank(leader.entry) <= self._queues.rank(record.entry):
            self._join(record, leader)
        else:
            self._queues.remove(leader.entry)
            self._queues.add(record.entry)
            self.replace(leader, record)
            self._join(leader, record)

    def hand_over(self, record: LiveRequest) -> LiveRequest | None:
        """Remove a request from its flight; return the one that gets its place or its slot, None if none has joined it.

        It is the first in the order of the queue.
        """
        joined = self.joined(record)
        if not joined:
            self.leave(record)
            return None
        first = min(joined, key=lambda each: self._queues.rank(each.entry))
        self.replace(record, first)
        first.state, first.slot_since, first.num_new_tokens = record.state, record.slot_since, record.num_new_tokens
        if first.state is State.QUEUED:
            self._queues.add(first.entry)
        return first

    def replace(self, older: LiveRequest, newer: LiveRequest) -> None:
        """Give the place of a request in its flight, if it is in one, to another request. The states stay."""
        flight = self._flights.pop(older.entry.id, None)
        if flight is None:
            return
        if flight.leader is older:
            self._unjoin(flight, newer)
            flight.leader = newer
        else:
            self._unjoin(flight, older)
            flight.joined[newer.entry.id] = newer
            self.num_joined += 1
        self._flights[newer.entry.id] = flight

    def leave(self, record: LiveRequest) -> None:
        """Remove a request, if it is in a flight. A flight ends with its leader."""
        flight = self._flights.get(record.entry.id)
        if flight is None:
            return
        if flight.leader is record:
            self.close(record.entry.id)
            for each in list(flight.joined.values()):
                self._unjoin(flight, each)
                del self._flights[each.entry.id]
        self._unjoin(flight, record)
        del self._flights[record.entry.id]

    def _join(self, record: LiveRequest, leader: LiveRequest) -> None:
        flight = self._flights[record.entry.id] = self._flights[leader.entry.id]
        flight.joined[record.entry.id] = record
        self.num_joined += 1
        record.state = State.JOINED

    def _unjoin(self, flight: _Flight, record: LiveRequest) -> None:
        if flight.joined.pop(record.entry.id, None) is not None:
            self.num_joined -= 1
