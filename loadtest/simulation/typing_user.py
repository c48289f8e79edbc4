"""Simulated users who type into documents, with an editor that shows completions. Pure and seeded up to `TypingUser`.

The keys and their times do not depend on completions, so that every client gets the same ones; only if `accepts_share`
is above 0 a right completion replaces the keys of its text. Some keys are something else: a mistyped word that is
deleted again, or a few characters typed in the middle of an earlier line.
"""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from completion_client.editing import Change
from loadtest.simulation.patterns.port import Client, Document
from loadtest.simulation.screen import Screen
from loadtest.traffic.documents import Stretch
from loadtest.traffic.typist import TypingModel

_MISTYPED = "qxz"
_INSERTED = "new_"
_NEAR_CHARS = 200
"""An edit elsewhere is at least so far from the place of typing, and at most three times as far."""


@dataclass(frozen=True, slots=True)
class UserModel:
    """How users type. The shares are assumptions."""

    typing: TypingModel = field(default_factory=TypingModel)
    mistypes_share: float = 0.02
    """Of the keys: a wrong word of 1 to 3 characters before it, deleted again."""
    leaves_share: float = 0.01
    """Of the keys: before it the user types a few characters in the middle of an earlier line."""
    accepts_share: float = 0.0
    """Of the shown texts that are right as a whole: accepted instead of typed."""
    rejects_share: float = 0.0
    """Of the shown texts that are wrong from their first character on: dismissed with Esc."""
    right_chars: int = 3
    """A text is right if so many of its characters are what the user types next."""
    look_s: float = 0.2
    """A text is seen, and can be accepted or dismissed, if it stands so long before the user's next event."""


@dataclass(frozen=True, slots=True)
class UserEvent:
    """A key or a move of the cursor."""

    gap_s: float
    """Since the event before."""
    document: Document
    """After it."""
    change: Change | None
    """None for a move."""
    at: int | None
    """The offset of the cursor in the text that is typed; None elsewhere and behind a mistyped word."""
    until: int
    """The event is left out if the text up to this offset was accepted."""


@dataclass(slots=True)
class UserFigures:
    """What a user did and saw."""

    num_keys: int = 0
    num_seen: int = 0
    """Texts that stood long enough, one for each key at most."""
    num_right: int = 0
    """Of these, those that were right."""
    num_accepted: int = 0
    waits_s: list[float] = field(default_factory=list)
    """From the key to the text, of those seen."""


def events_of(number: int, stretch: Stretch, model: UserModel, seed: int) -> Iterator[UserEvent]:
    """Yield a user's events."""
    chance = random.Random(f"{seed} {number} keys")
    uri, truth, after = f"file:///{number}.py", stretch.before, stretch.after
    before, at = truth[: stretch.ends[0]], stretch.ends[0]

    def event(text: str, rest: str, change: Change | None, offset: int | None, until: int) -> UserEvent:
        return UserEvent(model.typing.draw_gap_s(chance), Document(uri, text, rest), change, offset, until)

    yield event(before, after, None, at, at)
    for end in stretch.ends[1:]:
        draw = chance.random()
        if draw < model.mistypes_share:
            wrong = _MISTYPED[: chance.randint(1, len(_MISTYPED))]
            for num in range(1, len(wrong) + 1):
                yield event(before + wrong[:num], after, Change.TYPED, None, at + 1)
            for num in reversed(range(len(wrong))):
                yield event(before + wrong[:num], after, Change.DELETED, None if num else at, at + 1)
        elif draw < model.mistypes_share + model.leaves_share:
            place = max(1, len(before) - chance.randint(_NEAR_CHARS, 3 * _NEAR_CHARS))
            left, right = before[:place], before[place:]
            yield event(left, right + after, None, None, at + 1)
            for num in range(1, len(_INSERTED) + 1):
                yield event(left + _INSERTED[:num], right + after, Change.TYPED, None, at + 1)
            before = left + _INSERTED + right
            yield event(before, after, None, at, at + 1)
        before, at = before + truth[at:end], end
        yield event(before, after, Change.TYPED, at, at)


class TypingUser:
    """Plays a user's events to a client."""

    def __init__(self, number: int, stretch: Stretch, model: UserModel, seed: int) -> None:
        """Type the stretch."""
        self.truth = stretch.before
        self.figures = UserFigures()
        self._events = events_of(number, stretch, model, seed)
        self._model = model
        self._chance = random.Random(f"{seed} {number} reactions")
        self._skips_to = 0
        """What was accepted is not typed: up to this offset."""
        self._last = UserEvent(0.0, Document("", "", ""), None, None, 0)

    def offset_of(self, document: Document) -> int | None:
        """Return the offset in the text of a document that continues the present one; None if it is another text."""
        at, present = self._last.at, self._last.document
        if at is None or document.after != present.after or not document.before.startswith(present.before):
            return None
        following = document.before[len(present.before) :]
        return at + len(following) if self.truth.startswith(following, at) else None

    async def type(self, client: Client, screen: Screen, until_s: float) -> None:
        """Type until a time of the event loop."""
        now = asyncio.get_running_loop().time
        for event in self._events:
            if event.until <= self._skips_to:
                continue
            if now() + event.gap_s >= until_s:
                return
            await asyncio.sleep(event.gap_s)
            if self._look(client, screen):
                continue
            screen.begin()
            self._last = event
            if event.change is None:
                client.moved(event.document)
            else:
                self.figures.num_keys += 1
                client.changed(event.document, event.change)

    def _look(self, client: Client, screen: Screen) -> bool:
        """Count the shown text, if it was seen, and react; return whether it was accepted instead of the next key."""
        figures, model, text, at = self.figures, self._model, screen.text, self._last.at
        draw = self._chance.random()
        if not text.strip() or screen.stood_s < model.look_s:
            return False
        figures.num_seen += 1
        figures.waits_s.append(screen.wait_s)
        num_right = 0 if at is None else _num_common(text, self.truth, at)
        figures.num_right += num_right >= min(model.right_chars, len(text))
        if at is not None and num_right == len(text) >= model.right_chars and draw < model.accepts_share:
            self._accept(client, screen, at, text)
            return True
        if not num_right and draw < model.rejects_share:
            client.rejected()
        return False

    def _accept(self, client: Client, screen: Screen, at: int, text: str) -> None:
        self.figures.num_accepted += 1
        self._skips_to = at + len(text)
        self._last = UserEvent(0.0, self._last.document.typed(text), Change.OTHER, self._skips_to, 0)
        screen.begin()
        client.accepted(self._last.document, text)


def _num_common(text: str, truth: str, at: int) -> int:
    pairs = zip(text, truth[at : at + len(text)], strict=False)
    return next((num for num, (one, other) in enumerate(pairs) if one != other), min(len(text), len(truth) - at))
