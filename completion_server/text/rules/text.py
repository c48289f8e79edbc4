"""The text rules: which part of the generated text is sent, and when the completion ends. Pure.

The text sent is always the beginning of the generated text, for any division of that text into pieces. Line breaks are
passed on unchanged.

1. A stop string, or a line break with SINGLE_LINE, ends the completion before it.
2. Text that follows the cursor is not repeated (see `repetition` and `changes`).
3. With MULTI_LINE the completion ends with its block (see `block`).
4. A completion that repeats itself without an end is cut after the first time (see `runs`). Text that may be the
   beginning of such a run is withheld.
5. Blanks and blank lines at the end are dropped, unless the text right of the cursor needs them.
6. With MULTI_LINE the length limit and rule 4 leave no half line, except a half line that is the only one. The length
   limit leaves no "else:" without a line behind it.
"""

from completion_server.core.request import Mode, Request
from completion_server.text.rules.lines import LineRules
from completion_server.text.rules.runs import RunDetector
from completion_server.text.rules.surroundings import BLANKS, MAX_REST, Surroundings, begins_line, first_line


class StopStrings:
    """Passes text on up to the first stop string.

    The first stop string is the one whose last character comes first; if several end at the same character, the
    longest. Only the longest end of the text that is the beginning of a stop string is withheld.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""
        self.is_hit = False
        """Whether a stop string was found; the last return value of `feed` then ends the text."""

    def feed(self, text: str) -> str:
        """Take new text and return the text that is certainly before any stop string."""
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
        return self._held

    def _num_possible(self, text: str) -> int:
        """Return how many characters at the end of `text` may be the beginning of a stop string."""
        longest = min(len(text), max(map(len, self._stops)) - 1)
        ends = (text[-num:] for num in range(longest, 0, -1))
        return next((len(end) for end in ends if any(stop.startswith(end) for stop in self._stops)), 0)


class TextRules:
    """Applies the text rules to the text of one answer.

    The rules of lines begin at the first character that may matter to them, and read the text from its start then:
    their result does not depend on the pieces. Most answers have no such character.
    """

    def __init__(self, request: Request) -> None:
        """Take the mode, the text around the cursor and the stop strings from `request`."""
        self._request = request
        rest = first_line(request.suffix[:MAX_REST])
        first = rest.strip(BLANKS)[:1]
        is_single_line = request.mode is Mode.SINGLE_LINE
        self._special = frozenset(first if is_single_line else first + "\r\n")
        """The characters that may matter to the rules of lines, if text stands left of the cursor."""
        self._has_blank_before_rest = rest[:1] in BLANKS
        needs_lines = begins_line(request.prefix) and not (is_single_line and first)
        self._lines = self._make_lines() if needs_lines else None
        stops = tuple(filter(None, request.stop))
        self._stops = StopStrings(stops) if stops else None
        self._runs = RunDetector()
        self._num_passed = 0
        """Characters that the other rules let pass; the last ones may be part of a run."""
        self._num_sent = 0
        self.is_done = False
        """Whether a rule ended the completion: its text was sent whole and the engine can be stopped."""
        self._is_finished = False

    @property
    def has_whole_line(self) -> bool:
        """Whether a line is whole, and further ones may follow."""
        return self._lines is not None and self._lines.has_whole_line

    def feed(self, text: str) -> str:
        """Take new text and return the text that can be sent now, which may be "".

        Raises:
            RuntimeError: a rule has ended the completion, or it was finished.

        """
        self._check_open()
        if self._stops is None:
            return self._read(text)
        sent = self._read(self._stops.feed(text))
        if self._stops.is_hit and not self.is_done:
            self.is_done = True
            sent += self._finish(is_cut=False)
        return sent

    def finish(self, *, is_cut: bool) -> str:
        """Return the withheld text that can be sent, because the engine has ended; `is_cut` if a limit ended it.

        Raises:
            RuntimeError: a rule has ended the completion, or it was finished.

        """
        self._check_open()
        self._is_finished = True
        sent = "" if self._stops is None else self._read(self._stops.finish())
        if self.is_done:
            return sent
        if is_cut:
            self._runs.finish()
        return sent + (self._finish(is_cut=is_cut) if self._runs.end is None else self._end_before_run())

    def _read(self, text: str) -> str:
        """Read text without a stop string."""
        self.is_done = self._ends_in(self._runs.feed(text))
        if self.is_done:
            return self._runs.text[self._num_sent : self._num_passed]
        if self._runs.end is not None:
            self.is_done = True
            return self._end_before_run()
        if self._num_passed == self._num_sent:
            return ""
        sent = self._runs.text[self._num_sent : min(self._num_passed, self._runs.num_certain)].rstrip(BLANKS)
        self._num_sent += len(sent)
        return sent

    def _ends_in(self, text: str) -> bool:
        """Apply the rules of lines; return whether they end the completion in `text`, the last that was read."""
        if self._lines is None and self._special.isdisjoint(text):
            line = first_line(text)
            self._num_passed += len(line)
            if line == text:
                return False
            self._finish(is_cut=False)
            return True
        if self._lines is None:
            self._lines = self._make_lines()
        self._num_passed = self._lines.read(self._runs.text)
        return self._lines.is_done

    def _finish(self, *, is_cut: bool) -> str:
        """Return all that is left to send at the end of the text; `is_cut` if a limit, of tokens or time, ended it."""
        if self._lines is not None:
            self._num_passed = self._lines.finish(is_cut=is_cut)
        elif self._has_blank_before_rest:
            self._num_passed = len(self._runs.text[: self._num_passed].rstrip(BLANKS))
        return self._runs.text[self._num_sent : self._num_passed]

    def _end_before_run(self) -> str:
        """Return what is left to send of a completion of which only the text up to the run's first unit is kept.

        The other rules apply to that text alone, except where they had let more of it pass: that may be sent.
        """
        kept = self._runs.text[: self._runs.end]
        lines = self._make_lines()
        num_passed = lines.read(kept)
        if not lines.is_done:
            num_passed = lines.finish(is_cut=True)
        return kept[self._num_sent : max(num_passed, len(kept[: self._num_passed].rstrip(BLANKS)))]

    def _make_lines(self) -> LineRules:
        return LineRules(Surroundings.of(self._request), self._request.mode)

    def _check_open(self) -> None:
        if self.is_done or self._is_finished:
            raise RuntimeError("text was fed to a completion that has ended")
