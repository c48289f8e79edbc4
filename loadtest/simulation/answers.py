"""What a simulated model answers: the text that the user is going to type, up to a word that it does not know. Pure.

Each word of a document is predictable or not, whatever the request; so an answer is right up to the next word that is
not, and a user who has typed that word gets a right answer again.
"""

import random
import re
from dataclasses import dataclass

_WORD = re.compile(r"\w+|\s+|[^\w\s]")
_WRONG_LINES = (
    "value = self.other(name)",
    "return other",
    "if value is None:",
    "name.append(value)",
    "raise Other(name)",
)


@dataclass(frozen=True, slots=True)
class AnswerModel:
    """A model. The values are assumptions."""

    predictable_share: float = 0.7
    """Of the words."""
    ends_share: float = 0.5
    """Of the ends of lines: whether an answer ends there."""
    seed: int = 1

    def __post_init__(self) -> None:
        if not (0 <= self.predictable_share < 1 and 0 < self.ends_share <= 1):
            raise ValueError(f"predictable_share must be below 1 and ends_share above 0, got {self}")

    def answer(self, user: int, truth: str, at: int | None, before: str) -> str:
        """Return the answer at an offset of the text that a user types; `before` is the document up to the cursor.

        Where the offset is None, because the user has mistyped or is elsewhere, nothing of the answer is right.
        """
        chance = random.Random(f"{self.seed} {user} {before[-64:]}")
        found = "" if at is None else self._right(user, truth, at)
        if found.endswith("\n"):
            return found
        lines = [chance.choice(_WRONG_LINES)]
        while chance.random() >= self.ends_share:
            lines.append(chance.choice(_WRONG_LINES))
        return found + "\n".join(lines) + "\n"

    def _right(self, user: int, truth: str, at: int) -> str:
        """Return the right part: to the first word that is not predictable, or to the end of a line that ends it."""
        end = at
        for word in _WORD.finditer(truth, at):
            draw = random.Random(f"{self.seed} {user} {word.end()}").random()
            if draw >= self.predictable_share and not word.group().isspace():
                return truth[at:end]
            end = word.end()
            if "\n" in word.group() and random.Random(f"{self.seed} {user} end {end}").random() < self.ends_share:
                return truth[at : truth.index("\n", word.start()) + 1]
        return truth[at:end]
