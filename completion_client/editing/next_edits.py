"""The policy of next edits: when to ask for one, and which answers are shown.

As in `policy`, each event changes the state, and then `_settle` looks at all of it. Completions go first: an edit is
asked and shown only while no completion is.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

from completion_client.editing.feedback import Feedback, num_units
from completion_client.editing.line_edits import LineEdit, fitted, lines_of
from completion_client.editing.messages import AskEdit, Cancel, Change, EditDecision, Hide, ShowEdit, Text, Wait
from completion_client.editing.settings import NextEditSettings

NO_NEXT_EDITS = "no_next_edits"
"""The reason with which a request ends whose server does not write next edits."""

_ASKING_CHANGES = (Change.TYPED, Change.PASTED, Change.DELETED)
_REFUSED = ("shed", "error")


@dataclass(frozen=True, slots=True)
class _Wish:
    """A request that is to be sent when its time comes."""

    due_ms: float
    needs_pause: bool


@dataclass(frozen=True, slots=True)
class _Place:
    """A version of a document, and the cursor's line in it."""

    uri: str
    version: int
    line: int

    def is_same_text(self, other: "_Place | None") -> "TypeGuard[_Place]":
        """Tell whether the other place is in the same version of the document."""
        return other is not None and (self.uri, self.version) == (other.uri, other.version)


@dataclass(frozen=True, slots=True)
class _Asked:
    """An open request."""

    request: int
    place: _Place
    lines: Sequence[str]
    """The document's."""

    def offer(self, edit: LineEdit) -> "_Offer | None":
        """Return the edit of the answer, whose lines are counted from the cursor's; None if it changes nothing."""
        found = fitted(self.lines, LineEdit(self.place.line + edit.first, edit.num_lines, edit.text))
        if found is None:
            return None
        old = "".join(self.lines[found.first : found.first + found.num_lines])
        num_characters = min(num_units(found.text), num_units(edit.text))
        return _Offer(self.request, self.place, found, old, num_characters, Feedback(self.request))


@dataclass(frozen=True, slots=True)
class _Offer:
    """An edit that is or was shown."""

    request: int
    place: _Place
    edit: LineEdit
    old: str
    """The text that it replaces."""
    num_characters: int
    """New ones, in UTF-16 code units, at most those of the answer."""
    feedback: Feedback

    @property
    def content(self) -> tuple[str, str, str]:
        """What makes it the same edit as another."""
        return self.place.uri, self.old, self.edit.text


class NextEditPolicy:
    """Decides for one editor window. Each method takes an event and its time, as those of `EditingPolicy` do.

    `version` is the editor's number of the text, which no other text of the document gets. Give requests a time limit.
    """

    def __init__(self, settings: NextEditSettings | None = None) -> None:
        """Begin without a document, connected."""
        self.settings = settings or NextEditSettings()
        self._text = Text("", "", "")
        self._place: _Place | None = None
        self._wish: _Wish | None = None
        self._open: _Asked | None = None
        self._num_asked = 0
        self._answered: _Place | None = None
        self._offer: _Offer | None = None
        """The last one that was shown."""
        self._is_shown = False
        self._rejected: deque[tuple[str, str, str]] = deque(maxlen=self.settings.num_rejections)
        self._rejected_at: tuple[str, int] | None = None
        """The document and the line of the last rejection, until another line changes."""
        self._waits_until_ms: float | None = None
        self._backoff_until_ms = 0.0
        self._is_busy = self._is_away = self._is_refused = False
        self._decisions: list[EditDecision] = []

    @property
    def is_pending(self) -> bool:
        """Whether an answer may still come for the present text without a further event of the user."""
        return self._wish is not None or self._open is not None

    def changed(self, text: Text, version: int, change: Change, at_ms: float) -> list[EditDecision]:
        """The document changed; if an editor can't tell whether by an acceptance, `accepted` may follow."""
        place = self._go_to(text, version)
        if self._rejected_at != (place.uri, place.line):
            self._rejected_at = None
        self._wish = _Wish(at_ms + self.settings.pause_ms, True) if change in _ASKING_CHANGES else None
        return self._settle(at_ms)

    def moved(self, text: Text, version: int, at_ms: float) -> list[EditDecision]:
        """The cursor moved, or another document came to the front."""
        self._go_to(text, version)
        self._restart_pause(at_ms)
        return self._settle(at_ms)

    def wanted(self, text: Text, version: int, at_ms: float) -> list[EditDecision]:
        """The editor, which decides by itself when to ask, wants the next edit."""
        self._go_to(text, version)
        self._wish = _Wish(at_ms, False)
        return self._settle(at_ms)

    def accepted(self, request: int | None, text: Text, version: int, at_ms: float) -> list[EditDecision]:
        """The user accepted the edit of a request, or at None a completion; `text` is the document after that."""
        if self._offer is not None and self._offer.request == request:
            self._decisions += self._offer.feedback.edit_accepted(self._offer.num_characters)
        self._go_to(text, version)
        self._wish = _Wish(at_ms, False)
        return self._settle(at_ms)

    def rejected(self, at_ms: float) -> list[EditDecision]:
        """The user dismissed the shown edit (Esc)."""
        if self._is_shown and self._offer is not None and self._place is not None:
            self._decisions += self._offer.feedback.rejected()
            self._rejected.append(self._offer.content)
            self._rejected_at = (self._place.uri, self._place.line)
            self._hide()
        return self._settle(at_ms)

    def shown(self, request: int, at_ms: float) -> list[EditDecision]:
        """The editor has drawn the edit of a request."""
        if self._offer is not None and self._offer.request == request:
            self._decisions += self._offer.feedback.shown()
        return self._settle(at_ms)

    def ended(
        self,
        request: int,
        reason: str,
        at_ms: float,
        edit: LineEdit | None = None,
        version: int | None = None,
        retry_after_ms: float | None = None,
    ) -> list[EditDecision]:
        """A request ended, perhaps with an edit for a version, whose lines are counted from the cursor's line.

        `reason` is the finish reason in lower case, or NO_NEXT_EDITS; "error" also for a call that failed.
        """
        if self._open is not None and self._open.request == request:
            asked, self._open = self._open, None
            if reason == "stop":
                if edit is None or not self._is_busy:  # an edit that can't be shown now may be asked for again
                    self._answered = asked.place
                self._take(asked, edit, version)
            elif reason == NO_NEXT_EDITS:
                self._is_refused = True
            elif reason in _REFUSED:
                wait_ms = self.settings.shed_ms if retry_after_ms is None else retry_after_ms
                self._backoff_until_ms = max(self._backoff_until_ms, at_ms + wait_ms)
        return self._settle(at_ms)

    def busy(self, is_busy: bool, at_ms: float) -> list[EditDecision]:
        """A completion is shown or asked, or is no more."""
        if self._is_busy and not is_busy:
            self._restart_pause(at_ms)
        self._is_busy = is_busy
        return self._settle(at_ms)

    def tick(self, at_ms: float) -> list[EditDecision]:
        """The time of the last `Wait` has come."""
        self._waits_until_ms = None
        return self._settle(at_ms)

    def away(self, at_ms: float) -> list[EditDecision]:
        """The connection was lost, and with it the open request."""
        self._is_away, self._open = True, None
        return self._settle(at_ms)

    def back(self, at_ms: float) -> list[EditDecision]:
        """There is a connection again, perhaps to a server with another model."""
        self._is_away = self._is_refused = False
        return self._settle(at_ms)

    def left(self, at_ms: float) -> list[EditDecision]:
        """The editor lost the focus, or next edits were switched off."""
        self._place = self._wish = self._answered = None
        return self._settle(at_ms)

    def _go_to(self, text: Text, version: int) -> _Place:
        self._text = text
        self._place = _Place(text.uri, version, text.before.count("\n"))
        return self._place

    def _restart_pause(self, at_ms: float) -> None:
        if self._wish is not None and self._wish.needs_pause:
            self._wish = _Wish(at_ms + self.settings.pause_ms, True)

    def _take(self, asked: _Asked, edit: LineEdit | None, version: int | None) -> None:
        """Show the edit of an answer, unless it is stale, changes nothing or was rejected."""
        is_of_use = version == asked.place.version and asked.place.is_same_text(self._place) and not self._is_busy
        offer = asked.offer(edit) if edit is not None and is_of_use else None
        if offer is not None and offer.content not in self._rejected:
            self._offer, self._is_shown = offer, True
            self._decisions.append(ShowEdit(offer.request, offer.place.version, offer.edit))

    def _hide(self) -> None:
        if self._is_shown:
            self._is_shown = False
            self._decisions.append(Hide())

    def _settle(self, at_ms: float) -> list[EditDecision]:
        """Decide what is cancelled, hidden and asked in the present state."""
        place = self._place
        if self._open is not None and not self._open.place.is_same_text(place):
            self._decisions.append(Cancel(self._open.request))
            self._open = None
        if self._offer is not None and (self._is_busy or not self._offer.place.is_same_text(place)):
            self._hide()
        if place is not None and self._wish is not None:
            self._ask(place, self._wish, at_ms)
        decisions, self._decisions = self._decisions, []
        return decisions

    def _ask(self, place: _Place, wish: _Wish, at_ms: float) -> None:
        """Ask for the present place, if that is of use and due."""
        due_ms = max(wish.due_ms, self._backoff_until_ms)
        if self._is_in_vain(place):
            self._wish = None
        if self._wish is None or self._is_busy:
            return
        if at_ms >= due_ms:
            self._num_asked += 1
            self._open = _Asked(self._num_asked, place, lines_of(self._text.before + self._text.after))
            self._wish = None
            self._decisions.append(AskEdit(self._num_asked))
        elif self._waits_until_ms != due_ms:
            self._waits_until_ms = due_ms
            self._decisions.append(Wait(due_ms))

    def _is_in_vain(self, place: _Place) -> bool:
        """Tell whether the answer can't come, was rejected here, is awaited or is known."""
        if self._is_away or self._is_refused or self._open is not None:
            return True
        if self._rejected_at == (place.uri, place.line):
            return True
        answered = self._answered
        return place.is_same_text(answered) and abs(place.line - answered.line) <= self.settings.near_lines
