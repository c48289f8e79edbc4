"""What was offered to the editor, to know what it says that it accepted. Pure."""

import itertools
from collections import OrderedDict
from dataclasses import dataclass

from completion_client.editing import Extent
from completion_lsp.positions import prefix_of_units, raw_length, unix_lines

_MOST = 100
_LEAST_ACCEPTED = 3
"""An insertion of fewer characters may be two quick keys."""


@dataclass(slots=True)
class Offer:
    """Text for a place in a document. Offsets are characters."""

    token: str
    """Names the offer in the editor's messages."""
    request: int
    """The policy's number of the request that it comes from."""
    uri: str
    start: int
    end: int
    """The text between is replaced."""
    text: str
    num_known: int
    """Characters at the beginning that are the editor's own: a selected item of its menu."""
    num_accepted: int = 0
    """Characters that were accepted, with those."""

    def accept(self, num_characters: int) -> str:
        """Accept the beginning of the text, so many characters in all; return what is new of it."""
        before = max(self.num_known, self.num_accepted)
        self.num_accepted = max(before, min(num_characters, len(self.text)))
        return self.text[before : self.num_accepted]

    def accept_units(self, units: int) -> str:
        """Accept the beginning of the text, so many units of UTF-16 in all; return what is new of it."""
        return self.accept(len(prefix_of_units(self.text, units)))

    def end_in(self, document: str) -> int | None:
        """Return where its accepted part ends in a document, if it is there."""
        accepted = self.text[: self.num_accepted]
        end = self.start + raw_length(document, accepted)
        return end if unix_lines(document[self.start : end]) == accepted else None

    @property
    def extent(self) -> Extent:
        """How much was accepted last."""
        if self.num_accepted == len(self.text):
            return Extent.WHOLE
        is_at_line_end = "\n" in self.text[self.num_accepted - 1 : self.num_accepted + 1]
        return Extent.LINE if is_at_line_end else Extent.WORD


class Offers:
    """The latest offers by their tokens."""

    def __init__(self) -> None:
        """Begin without one."""
        self._offers: OrderedDict[str, Offer] = OrderedDict()
        self._numbers = itertools.count(1)

    def make(self, request: int, uri: str, start: int, end: int, known: str, text: str) -> Offer:
        """Make an offer of `known` and `text`."""
        offer = Offer(f"offer-{next(self._numbers)}", request, uri, start, end, known + text, len(known))
        self._offers[offer.token] = offer
        while len(self._offers) > _MOST:
            self._offers.popitem(last=False)
        return offer

    def forget(self) -> None:
        """Forget all offers; a later one has another token than they had."""
        self._offers.clear()

    def find(self, token: str) -> Offer | None:
        """Return an offer; None if it is forgotten."""
        return self._offers.get(token)


def looks_accepted(rest: str, inserted: str) -> bool:
    """Tell whether an insertion that continues a shown text is an acceptance rather than keys.

    It is all that was left, or ends where editors end a word or a line.
    """
    if len(inserted) < _LEAST_ACCEPTED or not rest.startswith(inserted):
        return False
    if len(inserted) == len(rest):
        return True
    before, after = inserted[-1], rest[len(inserted)]
    return after == "\n" or before.isspace() or not (_is_word(before) and _is_word(after))


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"
