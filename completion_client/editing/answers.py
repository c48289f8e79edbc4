"""Answers: what is left of one at a place, those of open requests, and those that are remembered."""

from collections import OrderedDict
from dataclasses import dataclass, field

from completion_client.editing.feedback import Feedback
from completion_client.editing.messages import Trigger
from completion_client.editing.place import Place


@dataclass(slots=True, eq=False)
class Answer:
    """A request's answer so far."""

    request: int
    place: Place
    trigger: Trigger
    asked_ms: float
    text: str = ""
    feedback: Feedback = field(init=False)

    def __post_init__(self) -> None:
        """Begin without a report."""
        self.feedback = Feedback(self.request)

    def rest_at(self, place: Place) -> "Rest | None":
        """Return what is left of the answer at a place; None if the place contradicts it.

        Brackets that the editor closed are replaced, so that an accepted text is the answer as it was asked for. Until
        the answer has these brackets itself there is nothing to show.
        """
        since = place.typed_since(self.place)
        if since is None:
            return None
        typed, closers = since
        if not self.text.startswith(typed):
            return None
        rest = self.text[len(typed) :]
        return Rest(self, rest if _has_in_order(rest, closers) else "", len(closers))

    def may_continue_at(self, place: Place) -> bool:
        """Tell whether an open answer is still of use: what was typed is its text so far, or goes on from there."""
        since = place.typed_since(self.place)
        return since is not None and (self.text.startswith(since[0]) or since[0].startswith(self.text))


@dataclass(frozen=True, slots=True)
class Rest:
    """What is left of an answer at a place."""

    answer: Answer
    text: str
    """Blank if there is nothing to show."""
    replaced: int
    """Closing brackets behind the cursor that the text replaces."""

    @property
    def is_visible(self) -> bool:
        """Whether there is more than white space to show."""
        return bool(self.text.strip())


class OpenRequests(dict[int, Answer]):
    """The answers of the requests that have no end, by their numbers."""

    def __init__(self, *, types_along: bool) -> None:
        """Begin without a request. With `types_along` a request is of use while its text is typed."""
        super().__init__()
        self._types_along = types_along

    def receive(self, number: int, text: str, at_ms: float) -> float | None:
        """Add text to the answer of a request; return the time to its first text, if this is it."""
        answer = self.get(number)
        if answer is None or not text:
            return None
        is_first = not answer.text
        answer.text += text
        return at_ms - answer.asked_ms if is_first else None

    def unanswered(self) -> list[Answer]:
        """Return the answers without text, but for requests of users who asked."""
        return [each for each in self.values() if each.trigger is not Trigger.EXPLICIT and not each.text]

    def useless_at(self, place: Place | None) -> list[Answer]:
        """Return the answers that can't continue the text at a place; all of them at None."""
        return [each for each in self.values() if place is None or not self._is_of_use(each, place)]

    def has_any_for(self, place: Place) -> bool:
        """Tell whether an answer may continue the text at a place."""
        return any(self._is_of_use(each, place) for each in self.values())

    def rest_at(self, place: Place) -> Rest | None:
        """Return what there is to show of the newest request that has something to show."""
        rests = [each.rest_at(place) for each in reversed(self.values()) if self._is_of_use(each, place)]
        return next((rest for rest in rests if rest is not None and rest.is_visible), None)

    def _is_of_use(self, answer: Answer, place: Place) -> bool:
        return answer.place == place or (self._types_along and answer.may_continue_at(place))


class KnownAnswers:
    """The answers of recent places; the least recently used one is forgotten first."""

    def __init__(self, num_answers: int) -> None:
        """Remember at most so many."""
        self._num_answers = num_answers
        self._answers: OrderedDict[Place, Answer] = OrderedDict()
        """The most recently used one is the last."""

    def add(self, answer: Answer) -> None:
        """Remember a whole answer, in place of an older one of the same place."""
        self._answers[answer.place] = answer
        self._answers.move_to_end(answer.place)
        while len(self._answers) > self._num_answers:
            self._answers.popitem(last=False)

    def forget(self, answer: Answer) -> None:
        """Forget an answer, if it is known."""
        if self._answers.get(answer.place) is answer:
            del self._answers[answer.place]

    def of_request(self, number: int) -> Answer | None:
        """Return the answer of a request, if it is known."""
        return next((answer for answer in self._answers.values() if answer.request == number), None)

    def find(self, place: Place, *, types_along: bool = True) -> Rest | None:
        """Return the rest of the most recently used answer that has text left here; None if no answer is known.

        An answer without text is known at its own place only, as is every answer without `types_along`.
        """
        for answer in reversed(self._answers.values()):
            rest = answer.rest_at(place)
            if rest is not None and (place == answer.place or (types_along and rest.is_visible)):
                self._answers.move_to_end(answer.place)
                return rest
        return None


def _has_in_order(text: str, characters: str) -> bool:
    found = iter(text)
    return all(each in found for each in characters)
