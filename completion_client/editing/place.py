"""Places in documents: what is the same one, what was typed from one to the next, what a completion can join."""

from dataclasses import dataclass

from completion_client.editing.messages import Mode, Text

CLOSERS = frozenset(")]}>\"'`")
"""Characters that editors add behind the cursor by themselves."""
_JOINED = CLOSERS | frozenset(" \t\r,;:{")
"""What may stand behind the cursor on its line where a completion is of use."""
_OPENERS = ("{", "(", "[", ":", ">")
"""A line that ends so begins a block."""


@dataclass(frozen=True, slots=True)
class Place:
    """A cursor in a document, with as much text on both sides as tells it from others."""

    uri: str
    before: str
    after: str
    num_before: int
    num_after: int

    @classmethod
    def of(cls, text: Text, context_chars: int) -> "Place":
        """Return the place of a text's cursor."""
        before, after = text.before[-context_chars:], text.after[:context_chars]
        return cls(text.uri, before, after, len(text.before), len(text.after))

    def typed_since(self, earlier: "Place") -> tuple[str, str] | None:
        """Return what was typed here since an earlier place, and the brackets that the editor closed behind it.

        None if the text differs in anything else, or if more was typed than a place keeps.
        """
        num_typed, num_closers = self.num_before - earlier.num_before, self.num_after - earlier.num_after
        if self.uri != earlier.uri or not 0 <= num_closers <= num_typed <= len(self.before):
            return None
        typed = self.before[len(self.before) - num_typed :]
        closers = self.after[:num_closers]
        is_same_before = (earlier.before + typed).endswith(self.before)
        is_same_after = (closers + earlier.after).startswith(self.after)
        return (typed, closers) if is_same_before and is_same_after and CLOSERS.issuperset(closers) else None

    @property
    def is_joinable(self) -> bool:
        """Whether nothing but closing brackets and separators stands behind the cursor on its line."""
        return _JOINED.issuperset(self.after.partition("\n")[0])

    def mode(self, *, is_new: bool) -> Mode:
        """Return what to ask for: many lines where a block or, with `is_new`, a line may begin, at the line's end.

        A block begins on a blank line and behind an opening character.
        """
        if self.after.partition("\n")[0].strip():
            return Mode.SINGLE_LINE
        line = self.before.rpartition("\n")[2].strip()
        return Mode.MULTI_LINE if is_new or not line or line.endswith(_OPENERS) else Mode.SINGLE_LINE


def is_word(text: str) -> bool:
    """Tell whether a text consists of word characters; true of no text."""
    return all(each.isalnum() or each == "_" for each in text)
