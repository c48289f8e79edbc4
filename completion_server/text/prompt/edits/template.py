"""What the prompts of all models that write next edits have in common. Pure."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from completion_server.core.diffs import Hunk
from completion_server.text.prompt.edits.region import Reach, Region


@dataclass(frozen=True, slots=True)
class Marker:
    """A single special token in a prompt."""

    text: str


Part = Marker | str
"""A prompt is a sequence of markers and texts."""


def num_characters_of(parts: Sequence[Part]) -> int:
    """Return the length of a prompt, with that of its markers."""
    return sum(len(part.text if isinstance(part, Marker) else part) for part in parts)


@dataclass(frozen=True, slots=True)
class ShownEdit:
    """A recent edit in a prompt."""

    path: str
    diff: str
    """With a line break behind its last line."""
    hunks: tuple[Hunk, ...]


@dataclass(frozen=True, slots=True)
class ShownSnippet:
    """A snippet in a prompt."""

    path: str
    text: str
    """With a line break behind its last line."""


@dataclass(frozen=True, slots=True)
class View:
    """What a prompt shows. No text has a marker's words."""

    path: str
    region: Region
    above: str = ""
    """Lines before the region, each with its break."""
    below: str = ""
    """Lines behind the region."""
    edits: Sequence[ShownEdit] = ()
    """The oldest first."""
    snippets: Sequence[ShownSnippet] = ()
    """The best last."""

    def marked(self, cursor: str) -> str:
        """Return the region's text with a marker at the cursor."""
        text, at = self.region.text, self.region.cursor_offset
        return text[:at] + cursor + text[at:]


class EditTemplate(ABC):
    """The form of a model's prompts and answers."""

    name: ClassVar[str]
    hints: ClassVar[tuple[str, ...]]
    """Parts of the model's name: the vocabulary is that of a base model, which writes no edits."""
    markers: ClassVar[tuple[str, ...]]
    """Special tokens of the prompts, which the vocabulary must have."""
    ends: ClassVar[tuple[str, ...]]
    """Special tokens that end an answer, if the vocabulary has them."""
    words: ClassVar[tuple[str, ...]]
    """Markers that are text to the tokenizer. The user's text must not hold one, nor may an edit."""
    stops: ClassVar[tuple[str, ...]]
    """Words that end an answer."""
    reach: ClassVar[Reach]
    """Lines that may change, beside the cursor's."""
    shown: ClassVar[Reach]
    """Lines shown around those."""
    max_edits: ClassVar[int]
    """Recent edits that a prompt shows."""

    @property
    def reserved(self) -> tuple[str, ...]:
        """Words that no line of the region may hold, nor an edit: an answer would end there, or be misread."""
        return (*self.words, *self.stops)

    @abstractmethod
    def render(self, view: View) -> list[Part]:
        """Return the prompt."""

    @abstractmethod
    def read(self, answer: str, region: Region, *, is_stopped: bool) -> str | None:
        """Return the region's new text from an answer; None if it says that nothing changes, or has another form.

        `is_stopped` says that a stop word or token followed the text of the answer.
        """

    def shield(self, text: str) -> str:
        """Return a text for the context of a prompt, with a blank in each word that is a marker."""
        for word in self.words:
            text = text.replace(word, f"{word[0]} {word[1:]}")
        return text


def without_last_break(text: str, region: Region, *, is_stopped: bool) -> str:
    """Return an answer without the line break that stands between the region and a stop word.

    Without a stop word a line break at the end belongs to the region if that ends with a blank line.
    """
    return text.removesuffix("\n") if is_stopped or not region.text.endswith("\n") else text
