"""Makes the trace of a run: all requests of all sessions with their times. The same scenario makes the same trace.

A session does not depend on the number of workers: it is drawn from the seed and the session's number alone. It has a
rank between 0 and 1 and types while its rank is below the share of the load's shape. Ranks are spread evenly over the
session numbers, so that every worker's sessions are representative.
"""

import itertools
import math
import random
from collections.abc import Iterator, Sequence

from loadtest.traffic.documents import (
    DocumentsError,
    SourceFile,
    Stretch,
    find_stretch,
    read_documents,
)
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.sections import EventSettings, ShapeSettings
from loadtest.traffic.typed import (
    NEVER_S,
    OPENING_SEQUENCE,
    Event,
    Text,
    Trace,
    Trigger,
    TypedRequest,
    TypedSession,
)

_OPENING_AT_S = 0.0
_ABUSER_KEYS = 200
"""Number of cursor positions that an abuser cycles through."""
# Weyl sequences: the multiples of an irrational number, modulo 1, fill the unit interval evenly for any count. Several
# numbers that are linearly independent over the rationals fill a cube.
_STEPS = ((math.sqrt(5) - 1) / 2, math.sqrt(2) - 1, math.sqrt(3) - 1)
RANK, REGION, READER = range(3)
"""Dimensions over which session numbers are spread."""

_DAY = (
    *(0.06, 0.04, 0.03, 0.03, 0.03, 0.04, 0.08, 0.20, 0.45, 0.80, 1.00, 0.98),
    *(0.75, 0.70, 0.92, 0.97, 0.93, 0.80, 0.50, 0.30, 0.20, 0.16, 0.12, 0.08),
)
"""An office day by the hour from midnight: two peaks with a lunch between them. Assumed."""


def make_trace(scenario: Scenario, worker: int = 0, num_workers: int = 1) -> Trace:
    """Make the trace of each `num_workers`th session from number `worker` on. Raises DocumentsError."""
    if not 0 <= worker < num_workers:
        raise ValueError(f"worker must be below num_workers = {num_workers}, got {worker}")
    maker = SessionMaker(scenario, read_documents(scenario.documents, str(scenario.seed)))
    numbers = range(worker, scenario.sessions + scenario.abusers.count, num_workers)
    sessions = [maker.editor(number) for number in numbers if number < scenario.sessions]
    sessions += [maker.abuser(number) for number in numbers if number >= scenario.sessions]
    events = tuple(_event(scenario, event) for event in scenario.events)
    return Trace(str(scenario.seed), scenario.duration_s, tuple(sessions), events)


class SessionMaker:
    """Makes sessions from their numbers, independently of each other."""

    def __init__(self, scenario: Scenario, documents: Sequence[SourceFile]) -> None:
        self._scenario = scenario
        self._documents = documents
        self._model = scenario.typing.model
        self._region_limits = list(itertools.accumulate(region.share for region in scenario.regions))

    def editor(self, number: int) -> TypedSession:
        """Make a session that types."""
        chance = self._chance(number)
        times_s = self._key_times_s(number, chance)
        path, stretch = self._stretch(number, len(times_s) - 1, chance)
        text = Text(stretch.before, stretch.after)
        requests = tuple(self._typed(number, text, stretch.ends, times_s, chance))
        return self._session(number, path, self._opening(number, text, stretch.ends[0]), requests)

    def abuser(self, number: int) -> TypedSession:
        """Make a session that sends requests at a fixed rate."""
        path, stretch = self._stretch(number, _ABUSER_KEYS, self._chance(number))
        text = Text(stretch.before, stretch.after)
        rate, duration_s = self._scenario.abusers.requests_per_s, self._scenario.duration_s
        requests = tuple(
            TypedRequest(
                session=number,
                sequence=OPENING_SEQUENCE + 1 + place,
                intended_at_s=place / rate,
                next_key_at_s=NEVER_S,
                is_pause=False,
                trigger=Trigger.AUTOMATIC,
                text=text,
                end=stretch.ends[1 + place % _ABUSER_KEYS],
            )
            for place in range(math.ceil(duration_s * rate))
        )
        user = f"abuser-{number - self._scenario.sessions}"
        return self._session(number, path, self._opening(number, text, stretch.ends[0]), requests, user)

    def _chance(self, number: int) -> random.Random:
        return random.Random(f"{self._scenario.seed}/{number}")

    def _key_times_s(self, number: int, chance: random.Random) -> list[float]:
        """Return the times of a session's keys, none while the shape is below its rank, and of the key after them."""
        scenario = self._scenario
        active_share = 1 - scenario.typing.idle_share
        rank = spread(number, RANK) / active_share
        if rank >= 1:
            return [NEVER_S]
        duration_s = scenario.duration_s
        *times_s, following_s = self._model.key_times_s(duration_s, chance)
        if scenario.shape.kind != "steady":
            times_s = [at_s for at_s in times_s if rank < share_at(scenario.shape, at_s, duration_s)]
        return [*times_s, following_s]

    def _typed(
        self, number: int, text: Text, ends: Sequence[int], times_s: Sequence[float], chance: random.Random
    ) -> Iterator[TypedRequest]:
        """Yield an editor's requests in the order of their times."""
        typing, editor = self._scenario.typing, self._scenario.editor
        debounce_s, pause_s, duration_s = typing.debounce_ms / 1000, typing.pause_ms / 1000, self._scenario.duration_s
        sequence = itertools.count(OPENING_SEQUENCE + 1)
        for end, (key_at_s, next_key_at_s) in zip(ends[1:], itertools.pairwise(times_s), strict=True):
            if editor.prefetch_share and chance.random() < editor.prefetch_share:
                yield TypedRequest(number, next(sequence), key_at_s, next_key_at_s, False, Trigger.PREFETCH, text, end)
            intended_at_s = key_at_s + debounce_s
            if intended_at_s < next_key_at_s and intended_at_s < duration_s:
                is_pause = next_key_at_s - key_at_s >= pause_s
                is_asked = is_pause and editor.explicit_share and chance.random() < editor.explicit_share
                trigger = Trigger.EXPLICIT if is_asked else Trigger.AUTOMATIC
                yield TypedRequest(number, next(sequence), intended_at_s, next_key_at_s, is_pause, trigger, text, end)

    def _stretch(self, number: int, num_keys: int, chance: random.Random) -> tuple[str, Stretch]:
        """Return the text that a session types: the first document with room, starting at the session's own."""
        settings = self._scenario.documents
        for place in range(len(self._documents)):
            document = self._documents[(number + place) % len(self._documents)]
            stretch = find_stretch(document, num_keys, settings, chance)
            if stretch is not None:
                return document.path, stretch
        raise DocumentsError(
            f"documents: none of the {len(self._documents)} files of {settings.source!r} has room for {num_keys} keys, "
            f"{settings.prefix_chars} characters before and {settings.suffix_chars} after them; "
            "name a folder with longer files, or make the run shorter"
        )

    def _opening(self, number: int, text: Text, end: int) -> TypedRequest:
        return TypedRequest(number, OPENING_SEQUENCE, _OPENING_AT_S, NEVER_S, False, Trigger.AUTOMATIC, text, end)

    def _session(
        self, number: int, path: str, opening: TypedRequest, requests: tuple[TypedRequest, ...], user: str = ""
    ) -> TypedSession:
        slow = self._scenario.slow_readers
        place = spread(number, REGION)
        region = next((region for region, limit in enumerate(self._region_limits) if place < limit), None)
        return TypedSession(
            number=number,
            region=len(self._region_limits) - 1 if region is None else region,
            user=user,
            document_uri=f"file:///{path}",
            language_id=self._scenario.documents.language,
            opening=opening,
            requests=requests,
            reads_every_s=slow.pause_ms / 1000 if spread(number, READER) < slow.share else 0.0,
        )


def _event(scenario: Scenario, event: EventSettings) -> Event:
    region = scenario.region_number(event.region) if event.region else None
    if event.kind == "reconnect":
        return Event(event.at_s, event.kind, region, event.at_s)
    until_s = event.at_s + event.for_s if event.for_s else scenario.duration_s
    return Event(event.at_s, event.kind, region, until_s)


def spread(number: int, over: int) -> float:
    """Return a value between 0 and 1 for a session, evenly spread over all numbers; `over` is the dimension."""
    return (0.5 + number * _STEPS[over]) % 1.0


def share_at(shape: ShapeSettings, at_s: float, duration_s: float) -> float:
    """Return the share of the sessions that type at a time of a run, above 0 and at most 1."""
    match shape.kind:
        case "ramp":
            return _ramp(shape, at_s, duration_s)
        case "spike":
            return 1.0 if shape.at_s <= at_s < shape.at_s + (shape.for_s or duration_s) else 1 / shape.factor
        case "day":
            return max(shape.from_share, shape.to_share * _day(at_s / (shape.period_s or duration_s)))
        case "steady":
            return 1.0


def _ramp(shape: ShapeSettings, at_s: float, duration_s: float) -> float:
    """Rise from `at_s` for `for_s`, or to the end, and stay."""
    rising_s = shape.for_s or duration_s - shape.at_s
    done = min(1.0, max(0.0, (at_s - shape.at_s) / rising_s))
    return shape.from_share + (shape.to_share - shape.from_share) * done


def _day(days: float) -> float:
    hours = days % 1.0 * len(_DAY)
    hour = int(hours) % len(_DAY)
    before, after = _DAY[hour], _DAY[(hour + 1) % len(_DAY)]
    return before + (after - before) * (hours - int(hours))
