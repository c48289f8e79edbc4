"""Makes the sessions of a trace: typing editors, recorded arrivals, abusers. Each session has its own random source."""

import itertools
import math
import random
from collections.abc import Iterator, Sequence

from loadtest.traffic.documents import DocumentsError, SourceFile, Stretch, find_stretch
from loadtest.traffic.recorded import Arrival
from loadtest.traffic.scenario import RecordedSettings, Scenario
from loadtest.traffic.shapes import RANK, READER, REGION, share_at, spread
from loadtest.traffic.typed import NEVER_S, OPENING_SEQUENCE, Text, Trigger, TypedRequest, TypedSession

CHARACTERS_A_TOKEN = 4
"""Of code, about; recorded lengths are in tokens."""

_OPENING_AT_S = 0.0
_ABUSER_KEYS = 200
"""Number of cursor positions that an abuser cycles through."""


class SessionMaker:
    """Makes sessions from their numbers, independently of each other."""

    def __init__(self, scenario: Scenario, documents: Sequence[SourceFile]) -> None:
        """Make the sessions of a scenario, in these documents."""
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

    def recorded(self, number: int, settings: RecordedSettings, arrivals: Sequence[Arrival]) -> TypedSession:
        """Make a session with recorded arrivals and lengths, whose text begins at the start of a file."""
        ends = [max(1, arrival.context_tokens * CHARACTERS_A_TOKEN) for arrival in arrivals]
        if settings.max_prefix_chars:
            ends = [min(end, settings.max_prefix_chars) for end in ends]
        suffix_chars = self._scenario.documents.suffix_chars
        document = self._long_document(number, max(ends, default=1) + suffix_chars)
        most = max(1, min(max(ends, default=1), len(document.text) - suffix_chars))
        text = Text(document.text[:most], document.text[most : most + suffix_chars])
        requests = tuple(
            TypedRequest(
                session=number,
                sequence=OPENING_SEQUENCE + 1 + place,
                intended_at_s=arrival.at_s,
                next_key_at_s=NEVER_S,
                is_pause=True,
                trigger=Trigger.AUTOMATIC,
                text=text,
                end=min(end, most),
                max_tokens=max(1, min(arrival.generated_tokens, settings.max_tokens)),
            )
            for place, (arrival, end) in enumerate(zip(arrivals, ends, strict=True))
        )
        opening_end = requests[0].end if requests else most
        return self._session(number, document.path, self._opening(number, text, opening_end), requests)

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
        """Return the times of a session's keys and of the key after the last.

        The session has no keys while the shape is below its rank.
        """
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
        msg = (
            f"documents: none of the {len(self._documents)} files of {settings.source!r} has room for {num_keys} keys, "
            f"{settings.prefix_chars} characters before and {settings.suffix_chars} after them; "
            "name a folder with longer files, or make the run shorter"
        )
        raise DocumentsError(msg)

    def _long_document(self, number: int, chars: int) -> SourceFile:
        """Return the first long enough document, starting from the session's own, or the longest."""
        turn = number % len(self._documents)
        own = (*self._documents[turn:], *self._documents[:turn])
        return next((each for each in own if len(each.text) >= chars), max(own, key=lambda each: len(each.text)))

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
