"""Tells by the text around the cursor whether requests are about the same document. Pure."""

from dataclasses import dataclass

from completion_server.http.dialect import Asked

ANCHOR = 256
"""Characters on each side of the cursor by which a document is known again."""
_MIN_ANCHOR = 8
"""Shorter text may stand in any document."""
_NEAR = 8192
"""Characters on each side of the cursor in which they are looked for."""


@dataclass(frozen=True, slots=True)
class Anchors:
    """The text around the cursor, without the cursor's line, which changes with each key."""

    uri: str
    start: str
    before: str
    after: str
    suffix: str
    """The beginning of all that is right of the cursor."""

    @classmethod
    def of(cls, asked: Asked) -> "Anchors":
        """Return those of a request."""
        begin = asked.prefix.rfind("\n") + 1
        after = asked.suffix.find("\n") + 1
        return cls(
            asked.document_uri,
            asked.prefix[:ANCHOR],
            asked.prefix[max(0, begin - ANCHOR) : begin],
            asked.suffix[after : after + ANCHOR] if after else "",
            asked.suffix[:ANCHOR],
        )

    def is_in(self, asked: Asked) -> bool:
        """Return whether a later request seems to be about the same document."""
        if self.uri or asked.document_uri:
            return self.uri == asked.document_uri
        known = [each for each in (self.before, self.after) if len(each.strip()) >= _MIN_ANCHOR]
        if not known:  # a line or two, perhaps not even that
            start = asked.prefix[:ANCHOR]
            if not start.strip() and not self.start.strip():
                return asked.suffix[:ANCHOR] == self.suffix
            shorter, longer = sorted((start, self.start), key=len)
            return bool(shorter.strip()) and longer.startswith(shorter)
        near = asked.prefix[-_NEAR:] + asked.suffix[:_NEAR]
        return any(each in near for each in known)
