"""Finds the strings that end a completion, also if they arrive in pieces."""


class StopStrings:
    """Passes text on up to the first stop string.

    The first stop string is the one whose last character comes first; if several end at the same character, the
    longest. Only the longest end of the text that is the beginning of a stop string is withheld.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.is_hit = False
        """Whether a stop string was found; the last return value of `feed` then ends the text."""

    def feed(self, text: str) -> str:
        """Take new text and return the text that is certainly before any stop string."""
        if not self._stops:
            return text
        text = self._held + text
        hits = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if hits:
            self.is_hit = True
            self._held = ""
            return text[: min(hits)[1]]
        num_held = self._num_possible(text)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held]

    def finish(self) -> str:
        """Return the withheld text at the end of the text."""
        held, self._held = self._held, ""
        return held

    def _num_possible(self, text: str) -> int:
        """Return how many characters at the end of `text` may be the beginning of a stop string."""
        longest = min(len(text), max(len(stop) for stop in self._stops) - 1)
        for num in range(longest, 0, -1):
            tail = text[len(text) - num :]
            if any(stop.startswith(tail) for stop in self._stops):
                return num
        return 0
