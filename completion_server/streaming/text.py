"""What of a generation's text an editor is sent, and when it is enough. Pure: no clock, no tasks.

What is sent is always a beginning of what the model wrote, and in total the same however that text arrives in pieces.
Line breaks are passed on as the model writes them.

1. A stop string, or a line break with SINGLE_LINE, ends the completion before it.
2. Text that follows the cursor is not repeated (see `repetition`).
3. With MULTI_LINE the completion ends with its block (see `block`).
4. Blanks and blank lines at the end are dropped, except before text right of the cursor that needs them.
5. With MULTI_LINE the length limit leaves no half line, unless there is no other.
"""

from completion_server.core.request import Request
from completion_server.streaming.lines import LineRules
from completion_server.streaming.stop_strings import StopStrings
from completion_server.streaming.surroundings import Surroundings


class TextRules:
    """The text of one generation, from its first character to its last."""

    def __init__(self, request: Request) -> None:
        """Take the mode, the text around the cursor and the stop strings from `request`."""
        self._stops = StopStrings(request.stop)
        self._lines = LineRules(Surroundings.of(request), request.mode)
        self._is_done = False
        self._is_finished = False

    @property
    def is_done(self) -> bool:
        """Whether a rule ended the completion: all of it was sent and the engine can be stopped."""
        return self._is_done

    def feed(self, text: str) -> str:
        """Take new text and return what can be sent now, which may be "".

        Raises:
            RuntimeError: a rule had ended the completion, or it was finished.

        """
        self._check_open()
        text = self._stops.feed(text)
        sent = self._lines.feed(text)
        if self._stops.is_hit and not self._lines.is_done:
            sent += self._lines.finish(is_cut=False)
        self._is_done = self._stops.is_hit or self._lines.is_done
        return sent

    def finish(self, *, is_cut: bool) -> str:
        """Return what can be sent of the text withheld: the engine ended by itself, for want of tokens if `is_cut`.

        Raises:
            RuntimeError: a rule had ended the completion, or it was finished.

        """
        self._check_open()
        self._is_finished = True
        sent = self._lines.feed(self._stops.finish())
        return sent if self._lines.is_done else sent + self._lines.finish(is_cut=is_cut)

    def _check_open(self) -> None:
        if self._is_done or self._is_finished:
            raise RuntimeError("text was fed to a completion that has ended")
