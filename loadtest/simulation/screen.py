"""The ghost text on a simulated user's screen, and since when it stands."""

from collections.abc import Callable


class Screen:
    """Shows at most one text."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        """Begin empty."""
        self._now_s = now_s
        self._begun_s = now_s()
        self._since_s = self._begun_s
        self.text = ""

    def begin(self) -> None:
        """Take an event of the user: what is shown from now on is for the text after it."""
        self._begun_s = self._since_s = self._now_s()

    def show(self, text: str) -> None:
        """Show text, "" for none. Text that grows stands since its first part."""
        if not self.text:
            self._since_s = self._now_s()
        self.text = text

    @property
    def stood_s(self) -> float:
        """How long the text stands, since the user's last event at most."""
        return self._now_s() - self._since_s

    @property
    def wait_s(self) -> float:
        """Time from the user's last event to the text."""
        return self._since_s - self._begun_s
