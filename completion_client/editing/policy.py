"""The policy: takes events with their times and returns decisions.

Each event changes the state; then one function, `_settle`, looks at all of it and decides. So the rules hold whatever
the order of events: text is shown only where it continues the document, and nothing is asked that is known, open,
rejected or of no use.
"""

import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from completion_client.editing.answers import Answer, KnownAnswers, OpenRequests, Rest
from completion_client.editing.messages import (
    Ask,
    Cancel,
    Change,
    Decision,
    Extent,
    Hide,
    Show,
    Text,
    Trigger,
    Wait,
)
from completion_client.editing.place import Place, is_word
from completion_client.editing.settings import EditingSettings

_ASKING_CHANGES = (Change.TYPED, Change.PASTED)
_WHOLE = ("stop", "length")
_REFUSED = ("shed", "error")


@dataclass(frozen=True, slots=True)
class _Wish:
    """A request for the present place that is to be sent when its time comes."""

    trigger: Trigger
    due_ms: float

    @property
    def is_explicit(self) -> bool:
        return self.trigger is Trigger.EXPLICIT


class _Rhythm:
    """The user's usual time between keys and the server's usual time to the first text."""

    def __init__(self, settings: EditingSettings) -> None:
        """Begin with the times that are assumed."""
        self._settings = settings
        self._gaps_ms: deque[float] = deque([settings.gap_ms], settings.num_gaps)
        self._ttfts_ms: deque[float] = deque([settings.ttft_ms], settings.num_ttfts)
        self._key_ms: float | None = None

    def typed(self, at_ms: float) -> None:
        """Take a key."""
        gap_ms = self._settings.gap_max_ms if self._key_ms is None else at_ms - self._key_ms
        if gap_ms < self._settings.gap_max_ms:
            self._gaps_ms.append(gap_ms)
        self._key_ms = at_ms

    def answered(self, ttft_ms: float) -> None:
        """Take the time from a request to its first text."""
        self._ttfts_ms.append(ttft_ms)

    @property
    def delay_ms(self) -> float:
        """The wait between a key and its request: none if the text can be there before the next key."""
        settings = self._settings
        gap_ms, ttft_ms = statistics.median(self._gaps_ms), statistics.median(self._ttfts_ms)
        if not settings.follows_rhythm or ttft_ms <= settings.fast_share * gap_ms:
            return settings.delay_min_ms
        return min(settings.delay_max_ms, max(settings.delay_min_ms, settings.delay_factor * gap_ms))


class EditingPolicy:
    """Decides for one editor window.

    Each method takes an event and its time, in milliseconds of any monotonic clock, and returns the decisions in the
    order in which to carry them out: reports, cancellations, what to show, what to ask. Give requests a time limit:
    while one is open that may still be of use, no other is asked.
    """

    def __init__(self, settings: EditingSettings | None = None) -> None:
        """Begin without a document, connected."""
        self.settings = settings or EditingSettings()
        self._place: Place | None = None
        self._rhythm = _Rhythm(self.settings)
        self._known = KnownAnswers(self.settings.num_answers)
        self._rejected: deque[Place] = deque(maxlen=self.settings.num_rejections)
        self._open = OpenRequests(types_along=self.settings.types_along)
        self._num_asked = 0
        self._wish: _Wish | None = None
        self._waits_until_ms: float | None = None
        self._backoff_until_ms = 0.0
        self._is_away = False
        self._shown: Rest | None = None
        self._decisions: list[Decision] = []

    @property
    def is_pending(self) -> bool:
        """Whether an answer may still come for the present place without a further event of the user."""
        return self._wish is not None or bool(self._open)

    def changed(self, text: Text, change: Change, at_ms: float) -> list[Decision]:
        """The document changed, but not by an acceptance; if an editor can't tell, `accepted` may follow."""
        before, shown = self._place, self._shown
        place = self._go_to(text)
        if change is Change.TYPED:
            self._rhythm.typed(at_ms)
            if shown and _is_against(shown.answer, before, place):
                self._decisions += shown.answer.feedback.rejected()
        if change in _ASKING_CHANGES:
            self._wish = _Wish(Trigger.AUTOMATIC, at_ms + self._rhythm.delay_ms)
        return self._settle(at_ms)

    def moved(self, text: Text, at_ms: float) -> list[Decision]:
        """The cursor moved, or another document came to the front."""
        self._go_to(text)
        return self._settle(at_ms)

    def explicit(self, text: Text, at_ms: float) -> list[Decision]:
        """The user asked for a completion. That lifts a rejection and goes before requests that have no text yet."""
        place = self._go_to(text)
        self._rejected = deque((each for each in self._rejected if not _is_same(place, each)), self._rejected.maxlen)
        self._wish = _Wish(Trigger.EXPLICIT, at_ms)
        self._cancel(self._open.unanswered())
        return self._settle(at_ms)

    def accepted(self, request: int, text: Text, extent: Extent, inserted: str, at_ms: float) -> list[Decision]:
        """The user accepted the text of a request or the first part of it; `text` is the document after that."""
        answer = self._answer(request)
        if answer:
            self._decisions += answer.feedback.accepted(extent, inserted, answer.text)
        self._go_to(text)
        self._wish = _Wish(Trigger.PREFETCH, at_ms) if self.settings.prefetches else None
        return self._settle(at_ms)

    def rejected(self, at_ms: float) -> list[Decision]:
        """The user dismissed the shown text (Esc)."""
        if self._shown and self._place:
            answer = self._shown.answer
            self._decisions += answer.feedback.rejected()
            self._rejected.append(self._place)
            self._known.forget(answer)
        return self._settle(at_ms)

    def shown(self, request: int, at_ms: float) -> list[Decision]:
        """The editor has drawn the text of a request."""
        answer = self._answer(request)
        if answer:
            self._decisions += answer.feedback.shown()
        return self._settle(at_ms)

    def received(self, request: int, text: str, at_ms: float) -> list[Decision]:
        """Text of a request came."""
        self._receive(request, text, at_ms)
        return self._settle(at_ms)

    def ended(
        self, request: int, reason: str, at_ms: float, text: str = "", retry_after_ms: float | None = None
    ) -> list[Decision]:
        """A request ended, perhaps with its last text.

        `reason` is the finish reason in lower case, such as "stop"; "error" also for a call that failed.
        """
        self._receive(request, text, at_ms)
        answer = self._open.pop(request, None)
        if answer and reason in _WHOLE:
            self._known.add(answer)
        elif answer and reason in _REFUSED:
            wait_ms = self.settings.shed_ms if retry_after_ms is None else retry_after_ms
            self._backoff_until_ms = max(self._backoff_until_ms, at_ms + wait_ms)
        return self._settle(at_ms)

    def tick(self, at_ms: float) -> list[Decision]:
        """The time of the last `Wait` has come."""
        self._waits_until_ms = None
        return self._settle(at_ms)

    def away(self, at_ms: float) -> list[Decision]:
        """The connection was lost, and with it the open requests."""
        self._is_away = True
        self._open.clear()
        return self._settle(at_ms)

    def back(self, at_ms: float) -> list[Decision]:
        """There is a connection again."""
        self._is_away = False
        return self._settle(at_ms)

    def left(self, at_ms: float) -> list[Decision]:
        """The editor lost the focus, or completions were switched off."""
        self._place = self._wish = None
        return self._settle(at_ms)

    def _answer(self, number: int) -> Answer | None:
        """Return the answer of a request that is open or remembered."""
        return self._open.get(number) or self._known.of_request(number)

    def _go_to(self, text: Text) -> Place:
        place = Place.of(text, self.settings.context_chars)
        if place != self._place:
            self._place, self._wish = place, None
        return place

    def _receive(self, number: int, text: str, at_ms: float) -> None:
        ttft_ms = self._open.receive(number, text, at_ms)
        if ttft_ms is not None:
            self._rhythm.answered(ttft_ms)

    def _settle(self, at_ms: float) -> list[Decision]:
        """Decide what is cancelled, shown and asked in the present state."""
        place = self._place
        if place is None or any(_is_same(place, each) for each in self._rejected):
            self._wish = None
            self._cancel_useless(None)
            self._present(None)
        else:
            self._cancel_useless(place)
            rest = self._open.rest_at(place) or self._known.find(place, types_along=self.settings.types_along)
            self._present(rest)
            self._ask(place, rest, at_ms)
        decisions, self._decisions = self._decisions, []
        return decisions

    def _ask(self, place: Place, rest: Rest | None, at_ms: float) -> None:
        """Ask for the present place, if that is wished, of use and due."""
        wish = self._wish
        if wish is None or self._open.has_any_for(place):
            return
        if self._is_in_vain(wish, place, rest):
            self._wish = None
            return
        due_ms = wish.due_ms if wish.is_explicit else max(wish.due_ms, self._backoff_until_ms)
        if at_ms >= due_ms:
            self._num_asked += 1
            self._open[self._num_asked] = Answer(self._num_asked, place, wish.trigger, at_ms)
            mode = place.mode(is_new=wish.trigger is not Trigger.AUTOMATIC)
            self._decisions.append(Ask(self._num_asked, wish.trigger, mode))
            self._wish = None
        elif self._waits_until_ms != due_ms:
            self._waits_until_ms = due_ms
            self._decisions.append(Wait(due_ms))

    def _is_in_vain(self, wish: _Wish, place: Place, rest: Rest | None) -> bool:
        """Tell whether the answer is known, can't come or can't be joined. A user who asks knows better."""
        if rest is not None and (rest.is_visible or not wish.is_explicit):
            return True
        return self._is_away or (self.settings.minds_line and not wish.is_explicit and not place.is_joinable)

    def _cancel_useless(self, place: Place | None) -> None:
        if self.settings.cancels:
            self._cancel(self._open.useless_at(place))

    def _cancel(self, answers: Iterable[Answer]) -> None:
        for answer in answers:
            del self._open[answer.request]
            self._decisions.append(Cancel(answer.request))

    def _present(self, rest: Rest | None) -> None:
        """Show a rest, if it has text, in place of what is shown."""
        shown = rest if rest is not None and rest.is_visible else None
        if shown == self._shown:
            return
        self._shown = shown
        self._decisions.append(Show(shown.answer.request, shown.text, shown.replaced) if shown else Hide())


def _is_same(place: Place, rejected: Place) -> bool:
    """Tell whether a place is a rejected one: the same text, or only the word was typed on."""
    since = place.typed_since(rejected)
    return since is not None and is_word(since[0])


def _is_against(answer: Answer, before: Place | None, place: Place) -> bool:
    """Tell whether a key contradicts the text of an answer, of which nothing had been typed."""
    return answer.place == before and place.uri == before.uri and not answer.may_continue_at(place)
