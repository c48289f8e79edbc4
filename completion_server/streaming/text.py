"""The text rules: which part of the generated text is sent, and when the completion ends. Pure.

The text sent is always the beginning of the generated text, for any division of that text into pieces. Line breaks are
passed on unchanged.

1. A stop string, or a line break with SINGLE_LINE, ends the completion before it.
2. Text that follows the cursor is not repeated (see `repetition`).
3. With MULTI_LINE the completion ends with its block (see `block`).
4. Blanks and blank lines at the end are dropped, unless the text right of the cursor needs them.
5. With MULTI_LINE the length limit leaves no half line, except a half line that is the only one.
"""

from completion_server.core.request import Request
from completion_server.streaming.lines import LineRules
from completion_server.streaming.stop_strings import StopStrings
from completion_server.streaming.surroundings import Surroundings


class TextRules:
    """Applies the text rules to the text of one answer."""

    def __init__(self, request: Request) -> None:
        """Take the mode, the text around the cursor and the stop strings from `request`."""
        self._stops = StopStrings(request.stop)
        self._lines = LineRules(Surroundings.of(request), request.mode)
        self._is_done = False
        self._is_finished = False

    @property
    def is_done(self) -> bool:
        """Whether a rule ended the completion: its text was sent whole and the engine can be stopped."""
        return self._is_done

    def feed(self, text: str) -> str:
        """Take new text and return the text that can be sent now, which may be "".

        Raises:
            RuntimeError: a rule has ended the completion, or it was finished.

        """
        self._check_open()
        text = self._stops.feed(text)
        sent = self._lines.feed(text)
        if self._stops.is_hit and not self._lines.is_done:
            sent += self._lines.finish(is_cut=False)
        self._is_done = self._stops.is_hit or self._lines.is_done
        return sent

    def finish(self, *, is_cut: bool) -> str:
        """Return the withheld text that can be sent, because the engine has ended; `is_cut` if it hit the token limit.

        Raises:
            RuntimeError: a rule has ended the completion, or it was finished.

        """
        self._check_open()
        self._is_finished = True
        sent = self._lines.feed(self._stops.finish())
        return sent if self._lines.is_done else sent + self._lines.finish(is_cut=is_cut)

    def _check_open(self) -> None:
        if self._is_done or self._is_finished:
            raise RuntimeError("text was fed to a completion that has ended")
