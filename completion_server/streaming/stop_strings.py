"""Strings that end a completion, found even where they arrive in pieces. Knows nothing of lines or code."""


class StopStrings:
    """Passes text on up to the first stop string.

    The first is the one whose last character comes first; of those that end at the same character, the longest.
    Withheld is only the longest end of the text that is the beginning of a stop string.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.is_hit = False
        """Whether a stop string was met; what `feed` returned then is the last of the text."""

    def feed(self, text: str) -> str:
        """Return the text that is certainly before any stop string."""
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
        """Return what was withheld: no more text will come."""
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
