"""A live request with its answer: the book adds generated text, the caller reads the text that the text rules pass."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from io import StringIO
from typing import Protocol

from completion_server.core.clock import Clock
from completion_server.core.events import AnswerClosed, Emit, Marks, RequestEnded
from completion_server.core.next_edit import Edit
from completion_server.core.outcome import (
    CANCELLED,
    INTERNAL_ERROR,
    AnswerPart,
    CachedAnswer,
    CacheLevel,
    End,
    FinishedAnswer,
    FinishReason,
    Outcome,
    Timings,
    Usage,
)
from completion_server.core.request import Request
from completion_server.requests.limits.quotas import Reservation
from completion_server.requests.mailbox import Mailbox
from completion_server.requests.rules import AnswerRules, EditRules
from completion_server.requests.scheduling.requests import LiveRequest
from completion_server.text.rules.text import TextRules

logger = logging.getLogger(__name__)

_WHOLE = frozenset({FinishReason.STOP, FinishReason.LENGTH})
_MS_PER_S = 1000


class CacheLookup(Protocol):
    """A request's place in a completion cache."""

    @property
    def answer(self) -> CachedAnswer | None:
        """The answer that was known when the request came in."""
        ...

    def fetch_nowait(self, on_answer: Callable[[CachedAnswer], bool]) -> None:
        """Ask other replicas' store. If it has an answer in time, call `on_answer`, which returns if that was used."""
        ...

    def keep(self, answer: FinishedAnswer) -> None:
        """Keep the computed answer for later requests."""
        ...


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of the server that a completion uses."""

    clock: Clock
    emit: Emit
    cancel: Callable[[str, Outcome], None]
    """Ends the request with this id, if it has not ended."""
    answered: Callable[[Request, int, float, CacheLevel], None]
    """Receives the length of each answer that had text, in UTF-16 code units, its TTFT in seconds, and its origin."""
    delta_pause_s: float = 0.0
    """Between two messages with text of one answer; the first and the last don't wait."""


@dataclass(slots=True, eq=False, kw_only=True, weakref_slot=True)
class Completion(LiveRequest):
    """A live request with its answer: the book adds generated text, the caller reads what the text rules pass."""

    request: Request
    services: Services
    reservation: Reservation | None
    """The tokens charged for it; None once its generation has it, which settles it when it stops."""
    lookup: CacheLookup | None = None
    """Keeps the answer if it is computed whole."""
    edit_rules: EditRules | None = None
    """Reads the answer to a request for the next edit."""
    is_rate_limited: bool = field(default=False, init=False)
    """Whether it was shed because its caller is over a limit; nothing was charged for it then."""
    outcome: Outcome | None = field(default=None, init=False)
    """How it has ended; None while it lives."""
    _mailbox: Mailbox = field(init=False)
    _edit: Edit | None = field(default=None, init=False)
    _rules: AnswerRules | None = field(default=None, init=False)
    """Made when there is text: most requests are dropped before."""
    _num_characters: int = field(default=0, init=False)
    _kept_text: StringIO | None = field(default=None, init=False)
    """The text that was sent, if it is to be kept."""
    _cached: CachedAnswer | None = field(default=None, init=False)
    _ended: RequestEnded | None = field(default=None, init=False)
    """Set from its end until nothing more of its answer will be written."""

    def __post_init__(self) -> None:
        """Prepare; nothing runs before the request has a slot."""
        self._mailbox = Mailbox(self.services.delta_pause_s)
        self._rules = self.edit_rules
        self._kept_text = StringIO() if self.lookup is not None else None

    @property
    def awaits_output(self) -> bool:
        """Whether it lives and has had no output."""
        return self.outcome is None and self.marks.first_output is None

    @property
    def has_work(self) -> bool:
        """Whether the model has anything to do: a next edit needs lines that may change."""
        return self.request.next_edit is None or self.edit_rules is not None

    # The caller's side

    def listen(self, on_event: Callable[[], None]) -> None:
        """Call `on_event` whenever `take_nowait` may return a part. It must not end a request."""
        self._mailbox.listen(on_event)

    def ignore(self) -> None:
        """Remove the callback of `listen`."""
        self._mailbox.ignore()

    def take_nowait(self) -> AnswerPart | None:
        """Return the next part of the answer, if there is one."""
        return self._mailbox.get_nowait()

    def note_end_written(self) -> None:
        """Report that the end was written."""
        if self.marks.ended is not None:
            self._close(self.services.clock.now() - self.marks.ended)

    def cancel(self, outcome: Outcome = CANCELLED) -> None:
        """End the request, if it has not ended, and abort its generation."""
        self.services.cancel(self.id, outcome)

    def leave(self, outcome: Outcome = CANCELLED) -> None:
        """Read no further. Ends the request, if it has not ended, and reports an End that was not written."""
        self.cancel(outcome)
        self.ignore()
        self._close(None)

    # What the book calls, see `LiveRequest`

    def receive(self, text: str, finish: FinishReason | None) -> Outcome | None:
        """Take new text, and pass on the part that the text rules allow; return how the answer ended, if it did."""
        try:
            return self._receive(text, finish)
        except Exception:
            logger.exception("request %s failed", self.id)
            return INTERNAL_ERROR

    def end(self, outcome: Outcome, usage: Usage) -> None:
        """Close the answer. After a supersede, unread text is dropped."""
        try:
            self._end(outcome, usage)
        except Exception:
            logger.exception("the end of request %s could not be reported to its caller", self.id)

    def give(self, answer: CachedAnswer) -> None:
        """Answer with a known answer. The request has had no output and is about to end."""
        self._cached, self.lookup = answer, None
        self.marks.first_output = self.marks.last_output = self.services.clock.now()
        self._put(answer.text)

    def _receive(self, text: str, finish: FinishReason | None) -> Outcome | None:
        rules = self._rules
        if rules is None:
            rules = self._rules = TextRules(self.request)
        if text and not rules.is_done:
            self._put(rules.feed(text))
        if rules.is_done:
            finish = FinishReason.STOP
        elif finish is None and not self._is_last_call(rules):
            return None
        else:
            if finish is None:
                finish, self.lookup = FinishReason.LENGTH, None  # not kept: a caller with more time gets more
            self._put(rules.finish(is_cut=finish is FinishReason.LENGTH))
        if self.edit_rules is not None and finish is FinishReason.STOP:
            self._edit = self.edit_rules.edit
        return Outcome(finish)

    def _is_last_call(self, rules: AnswerRules) -> bool:
        has_lines = rules.has_whole_line and self._num_characters > 0
        return has_lines and self.services.clock.now() >= self.last_call

    def _end(self, outcome: Outcome, usage: Usage) -> None:
        services, marks = self.services, self.marks
        self.outcome = outcome
        marks.ended = services.clock.now()
        if outcome.reason is FinishReason.SUPERSEDED:
            self._mailbox.discard_pending_nowait()
        if self._cached is not None and outcome.reason in _WHOLE:
            usage = replace(
                usage,
                cache_level=self._cached.level,
                kept_prompt_tokens=self._cached.num_prompt_tokens,
                kept_completion_tokens=self._cached.num_completion_tokens,
            )
        edit = self._edit if outcome.reason is FinishReason.STOP else None
        if edit is not None:
            self._count(edit.text or "\n")  # a deletion, too, is an answer that a user reacts to
        end = End(outcome, usage, timings_of(marks, marks.ended), edit=edit)
        self._mailbox.close_nowait(end)
        if self.reservation is not None:
            self.reservation.settle(0, marks.ended)
        if self._num_characters and marks.first_output is not None:
            cache_level = CacheLevel.NONE if self._cached is None else self._cached.level
            services.answered(self.request, self._num_characters, marks.first_output - marks.received, cache_level)
        self._ended = RequestEnded(self.request, end, marks, has_text=self._num_characters > 0)
        services.emit(self._ended)
        if self.lookup is not None and outcome.reason in _WHOLE:
            self.lookup.keep(self._finished(end))

    def _finished(self, end: End) -> FinishedAnswer:
        usage, timings = end.usage, end.timings
        return FinishedAnswer(
            self._kept_text.getvalue() if self._kept_text is not None else "",
            end.outcome.reason,
            num_typed=self.marks.num_typed,
            num_prompt_tokens=usage.prompt_tokens,
            num_completion_tokens=usage.completion_tokens,
            engine_s=(timings.prefill_ms + timings.decode_ms) / _MS_PER_S,
        )

    def _close(self, stream_s: float | None) -> None:
        if self._ended is not None:
            self.services.emit(AnswerClosed(self._ended, stream_s))
            self._ended = None

    def _put(self, text: str) -> None:
        if self._kept_text is not None:
            self._kept_text.write(text)
        self._count(text)
        self._mailbox.put_nowait(text)

    def _count(self, text: str) -> None:
        """Count text in UTF-16 code units, as editors report what of it was accepted."""
        self._num_characters += len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2


def timings_of(marks: Marks, ended: float) -> Timings:
    """Divide the time since receipt into stages; an unfinished stage lasts until the end."""
    return Timings(
        queue_ms=_between_ms(marks.received, marks.started, ended),
        tokenise_ms=_between_ms(marks.started, marks.prompted, ended),
        prefill_ms=_between_ms(marks.prompted, marks.first_output, ended),
        decode_ms=_between_ms(marks.first_output, marks.last_output, ended),
        total_ms=(ended - marks.received) * _MS_PER_S,
    )


def _between_ms(begin: float | None, end: float | None, ended: float) -> float:
    if begin is None:
        return 0.0
    return ((ended if end is None else end) - begin) * _MS_PER_S
