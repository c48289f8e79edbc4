"""The requests without an end, and which of them are of use at a place."""

from dataclasses import dataclass

from completion_client.editing.answers import Answer, Rest
from completion_client.editing.messages import Trigger
from completion_client.editing.place import Place


@dataclass(frozen=True, slots=True)
class _Open:
    answer: Answer
    trigger: Trigger
    asked_ms: float


class OpenRequests:
    """The requests that are open."""

    def __init__(self, *, types_along: bool) -> None:
        """Begin without a request. With `types_along` a request is of use while its text is typed."""
        self._types_along = types_along
        self._open: dict[int, _Open] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no request is open."""
        return not self._open

    def add(self, answer: Answer, trigger: Trigger, at_ms: float) -> None:
        """Add a request."""
        self._open[answer.request] = _Open(answer, trigger, at_ms)

    def remove(self, number: int) -> Answer | None:
        """Remove a request and return its answer so far; None if there is none."""
        request = self._open.pop(number, None)
        return request.answer if request else None

    def clear(self) -> None:
        """Remove all."""
        self._open.clear()

    def receive(self, number: int, text: str, at_ms: float) -> float | None:
        """Add text to the answer of a request; return the time to its first text, if this is it."""
        request = self._open.get(number)
        if request is None or not text:
            return None
        is_first = not request.answer.text
        request.answer.text += text
        return at_ms - request.asked_ms if is_first else None

    def answer_of(self, number: int) -> Answer | None:
        """Return the answer of a request so far; None if there is none."""
        request = self._open.get(number)
        return request.answer if request else None

    def unanswered(self) -> list[Answer]:
        """Return the answers without text, but for requests of users who asked."""
        return [
            each.answer for each in self._open.values() if each.trigger is not Trigger.EXPLICIT and not each.answer.text
        ]

    def useless_at(self, place: Place | None) -> list[Answer]:
        """Return the answers that can't continue the text at a place; all of them at None."""
        return [each.answer for each in self._open.values() if place is None or not self._is_of_use(each.answer, place)]

    def has_any_for(self, place: Place) -> bool:
        """Tell whether an answer may continue the text at a place."""
        return any(self._is_of_use(each.answer, place) for each in self._open.values())

    def rest_at(self, place: Place) -> Rest | None:
        """Return what there is to show of the newest request that has something to show."""
        answers = [each.answer for each in self._open.values() if self._is_of_use(each.answer, place)]
        rests = [answer.rest_at(place) for answer in reversed(answers)]
        return next((rest for rest in rests if rest is not None and rest.is_visible), None)

    def _is_of_use(self, answer: Answer, place: Place) -> bool:
        return answer.place == place or (self._types_along and answer.may_continue_at(place))
