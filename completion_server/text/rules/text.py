"""The text rules: which part of the generated text is sent, and when the completion ends. Pure.

The text sent is always the beginning of the generated text, for any division of that text into pieces. Line breaks are
passed on unchanged.

1. A stop string, or a line break with SINGLE_LINE, ends the completion before it.
2. Text that follows the cursor is not repeated (see `repetition`).
3. With MULTI_LINE the completion ends with its block (see `block`).
4. A completion that repeats itself without an end is cut after the first time (see `runs`). Text that may be the
   beginning of such a run is withheld.
5. Blanks and blank lines at the end are dropped, unless the text right of the cursor needs them.
6. With MULTI_LINE the length limit and rule 4 leave no half line, except a half line that is the only one.
"""

from io import StringIO

from completion_server.core.request import Request
from completion_server.text.rules.lines import LineRules
from completion_server.text.rules.runs import RunDetector
from completion_server.text.rules.surroundings import BLANKS, Surroundings


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


class TextRules:
    """Applies the text rules to the text of one answer."""

    def __init__(self, request: Request) -> None:
        """Take the mode, the text around the cursor and the stop strings from `request`."""
        self._request = request
        self._stops = StopStrings(request.stop)
        self._lines = self._make_lines()
        self._runs = RunDetector()
        self._read_text = StringIO()
        """The text that was read, which is read again if a run ends it; one buffer, not an object for each token."""
        self._pending = ""
        """Text that the other rules let pass and that may be part of a run."""
        self._num_sent = 0
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
        sent = self._read(self._stops.feed(text))
        if self._stops.is_hit and not self._is_done:
            self._is_done = True
            sent += self._release(self._lines.finish(is_cut=False), is_last=True)
        return sent

    def finish(self, *, is_cut: bool) -> str:
        """Return the withheld text that can be sent, because the engine has ended; `is_cut` if it hit the token limit.

        Raises:
            RuntimeError: a rule has ended the completion, or it was finished.

        """
        self._check_open()
        self._is_finished = True
        sent = self._read(self._stops.finish())
        if self._is_done:
            return sent
        if is_cut:
            self._runs.finish()
        if self._runs.end is not None:
            return sent + self._end_before_run(self._num_sent + len(self._pending))
        return sent + self._release(self._lines.finish(is_cut=is_cut), is_last=True)

    def _read(self, text: str) -> str:
        """Read text without a stop string."""
        num_read = self._runs.feed(text)
        self._read_text.write(text)
        passed = self._lines.feed(text[:num_read])
        if self._lines.is_done:
            self._is_done = True
        elif self._runs.end is not None:
            self._is_done = True
            return self._end_before_run(self._num_sent + len(self._pending) + len(passed))
        return self._release(passed, is_last=self._is_done)

    def _release(self, passed: str, *, is_last: bool) -> str:
        """Take text that the other rules let pass, and return the part that can be sent."""
        self._pending += passed
        sent = self._pending
        if not is_last:
            sent = sent[: max(0, self._runs.num_certain - self._num_sent)].rstrip(BLANKS)
        self._pending = self._pending[len(sent) :]
        self._num_sent += len(sent)
        return sent

    def _end_before_run(self, num_passed: int) -> str:
        """Return what is left to send of a completion of which only the text up to the run's first unit is kept.

        The other rules apply to that text alone, except where they had let more of it pass: that may be sent.
        """
        kept = self._read_text.getvalue()[: self._runs.end]
        lines = self._make_lines()
        whole = lines.feed(kept) + lines.finish(is_cut=True)
        passed = kept[:num_passed].rstrip(BLANKS)
        return max(whole, passed, key=len)[self._num_sent :]

    def _make_lines(self) -> LineRules:
        return LineRules(Surroundings.of(self._request), self._request.mode)

    def _check_open(self) -> None:
        if self._is_done or self._is_finished:
            raise RuntimeError("text was fed to a completion that has ended")
