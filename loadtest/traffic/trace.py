"""Makes the trace of a run: all requests of all sessions with their times. The same scenario makes the same trace.

A session does not depend on the number of workers: it is drawn from the seed and the session's number alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from loadtest.traffic.documents import read_documents
from loadtest.traffic.recorded import read_arrivals
from loadtest.traffic.scenario import EventSettings, Scenario
from loadtest.traffic.sessions import SessionMaker
from loadtest.traffic.typed import OPENING_SEQUENCE, Text, Trigger, TypedRequest, TypedSession

__all__ = [
    "OPENING_SEQUENCE",
    "Event",
    "Text",
    "Trace",
    "Trigger",
    "TypedRequest",
    "TypedSession",
    "join_digests",
    "make_trace",
]

_DIGESTS = 2**64


@dataclass(frozen=True, slots=True)
class Event:
    """An event that breaks streams. Times are in seconds from the run's start."""

    at_s: float
    kind: str
    """`reconnect`: the streams break and reconnect. `region_loss`: a region's host is unreachable for a time."""
    region: int | None
    """Region whose streams break; None for all."""
    until_s: float


@dataclass(frozen=True, slots=True)
class Trace:
    """The requests of a worker's share of the sessions."""

    seed: str
    duration_s: float
    """Requests are intended before this."""
    sessions: tuple[TypedSession, ...]
    events: tuple[Event, ...] = ()

    @property
    def num_requests(self) -> int:
        """Number of requests, without the openings."""
        return sum(len(session.requests) for session in self.sessions)

    def documents(self) -> Iterator[tuple[str, TypedRequest]]:
        """Yield all requests with their session's name, session by session in the order of the keys."""
        for session in self.sessions:
            for request in (session.opening, *session.requests):
                yield f"{self.seed}/{session.number}", request

    def with_token_ids(self, token_ids: Iterator[Sequence[int]]) -> "Trace":
        """Return a copy with prompts, given in the order of `documents`."""

        def rendered(request: TypedRequest) -> TypedRequest:
            return replace(request, token_ids=tuple(next(token_ids)))

        sessions = [
            replace(each, opening=rendered(each.opening), requests=tuple(map(rendered, each.requests)))
            for each in self.sessions
        ]
        return replace(self, sessions=tuple(sessions))

    def digest(self) -> str:
        """Return a hash of everything except the prompts."""
        salt = repr((self.seed, self.duration_s, self.events))
        return f"{sum(session.hashed(salt) for session in self.sessions) % _DIGESTS:016x}"


def join_digests(digests: Iterable[str]) -> str:
    """Return the digest of the whole trace from the digests of the workers' shares, in any order."""
    return f"{sum(int(digest, 16) for digest in digests) % _DIGESTS:016x}"


def make_trace(scenario: Scenario, worker: int = 0, num_workers: int = 1) -> Trace:
    """Make the trace of the sessions whose number modulo `num_workers` is `worker`.

    Raises:
        DocumentsError: there is not enough text to type.
        RecordedError: the recorded arrivals can't be read.

    """
    if not 0 <= worker < num_workers:
        msg = f"worker must be below num_workers = {num_workers}, got {worker}"
        raise ValueError(msg)
    maker = SessionMaker(scenario, read_documents(scenario.documents, str(scenario.seed)))
    numbers = range(worker, scenario.sessions + scenario.abusers.count, num_workers)
    if scenario.recorded is None:
        sessions = [maker.editor(number) for number in numbers if number < scenario.sessions]
    else:
        recorded = scenario.recorded
        arrivals = read_arrivals(
            Path(recorded.file), scale=recorded.scale, duration_s=scenario.duration_s, rows=recorded.rows
        )
        sessions = [
            maker.recorded(number, recorded, arrivals[number :: scenario.sessions])
            for number in numbers
            if number < scenario.sessions
        ]
    sessions += [maker.abuser(number) for number in numbers if number >= scenario.sessions]
    events = tuple(_event(scenario, event) for event in scenario.events)
    return Trace(str(scenario.seed), scenario.duration_s, tuple(sessions), events)


def _event(scenario: Scenario, event: EventSettings) -> Event:
    region = scenario.region_number(event.region) if event.region else None
    if event.kind == "reconnect":
        return Event(event.at_s, event.kind, region, event.at_s)
    until_s = event.at_s + event.for_s if event.for_s else scenario.duration_s
    return Event(event.at_s, event.kind, region, until_s)
