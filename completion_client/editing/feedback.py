"""What is reported of an answer: each kind once, and no more accepted characters than the answer has."""

from completion_client.editing.messages import Extent, Report


class Feedback:
    """The reports on one answer."""

    __slots__ = ("_kinds", "_num_accepted", "_request")

    def __init__(self, request: int) -> None:
        """Begin without a report."""
        self._request = request
        self._kinds: set[str] = set()
        self._num_accepted = 0

    def shown(self) -> list[Report]:
        """Report that the editor has drawn the answer."""
        return self._once("shown")

    def rejected(self) -> list[Report]:
        """Report that the user dismissed the answer, unless some of it was accepted."""
        return [] if self._num_accepted else self._once("rejected")

    def accepted(self, extent: Extent, inserted: str, text: str) -> list[Report]:
        """Report that the user accepted all of the answer's text or a part of it."""
        num = min(num_units(inserted), num_units(text) - self._num_accepted)
        if num <= 0:
            return []
        self._num_accepted += num
        return [Report(self._request, extent.value, num)]

    def edit_accepted(self, num_characters: int) -> list[Report]:
        """Report that the user accepted an edit with so many new characters; a deletion has none."""
        return self._once(Extent.WHOLE.value, num_characters)

    def _once(self, kind: str, num_characters: int = 0) -> list[Report]:
        if kind in self._kinds:
            return []
        self._kinds.add(kind)
        return [Report(self._request, kind, num_characters)]


def num_units(text: str) -> int:
    """Return the length of a text in UTF-16 code units."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
