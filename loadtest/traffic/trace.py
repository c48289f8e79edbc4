"""What all editors ask for and when, the whole of it made before anything runs. The same scenario, the same schedule.

A session is the same whatever the number of workers is: all that is drawn for it comes from the seed and its number.
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
    """Something that happens to the streams. Times are in seconds from the run's start."""

    at_s: float
    kind: str
    """`reconnect`: the streams break and come back. `region_loss`: a region's host can't be had for a time."""
    region: int | None
    """Whose streams; None is all."""
    until_s: float


@dataclass(frozen=True, slots=True)
class Trace:
    """A worker's share of a run."""

    seed: str
    duration_s: float
    """Requests are intended before this."""
    sessions: tuple[TypedSession, ...]
    events: tuple[Event, ...] = ()

    @property
    def num_requests(self) -> int:
        """Requests, openings not among them."""
        return sum(len(session.requests) for session in self.sessions)

    def documents(self) -> Iterator[tuple[str, TypedRequest]]:
        """Yield everything that is asked for, session by session in the order of its keys, with the session's name."""
        for session in self.sessions:
            for request in (session.opening, *session.requests):
                yield f"{self.seed}/{session.number}", request

    def with_token_ids(self, token_ids: Iterator[Sequence[int]]) -> "Trace":
        """Return it with prompts, taken in the order of `documents`."""

        def rendered(request: TypedRequest) -> TypedRequest:
            return replace(request, token_ids=tuple(next(token_ids)))

        sessions = [
            replace(each, opening=rendered(each.opening), requests=tuple(map(rendered, each.requests)))
            for each in self.sessions
        ]
        return replace(self, sessions=tuple(sessions))

    def digest(self) -> str:
        """Return what tells it from another: a hash of all of it but the prompts."""
        salt = repr((self.seed, self.duration_s, self.events))
        return f"{sum(session.hashed(salt) for session in self.sessions) % _DIGESTS:016x}"


def join_digests(digests: Iterable[str]) -> str:
    """Return the digest of a whole schedule from those of the workers' shares, in any order."""
    return f"{sum(int(digest, 16) for digest in digests) % _DIGESTS:016x}"


def make_trace(scenario: Scenario, worker: int = 0, num_workers: int = 1) -> Trace:
    """Make a worker's share of a run: the sessions whose number, divided by `num_workers`, leaves `worker`.

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
