"""The answer to one request: the runner adds generated text, the caller reads the text that the text rules pass."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from io import StringIO
from typing import Any, Protocol

from completion_server.admission.quotas import Reservation
from completion_server.core.clock import Clock
from completion_server.core.events import Emit, EndUnwritten, EndWritten, Marks, RequestEnded
from completion_server.core.next_edit import Edit
from completion_server.core.outcome import (
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
from completion_server.scheduling.actions import CANCELLED
from completion_server.scheduling.requests import LiveRequest
from completion_server.serving.generate import Generator, Progress
from completion_server.serving.rules import AnswerRules, EditRules
from completion_server.streaming.mailbox import Mailbox
from completion_server.streaming.text import TextRules

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

    generator: Generator
    clock: Clock
    emit: Emit
    cancel: Callable[[str, Outcome], None]
    """Ends the request with this id, if it has not ended."""
    answered: Callable[[Request, int, float, CacheLevel], None]
    """Receives the length of each answer that had text, in UTF-16 code units, its TTFT in seconds, and its origin."""
    delta_pause_s: float = 0.0
    """Between two messages with text of one answer; the first and the last don't wait."""


class Completion:
    """The answer to a request. The runner's `Reader`."""

    def __init__(
        self,
        services: Services,
        request: Request,
        live: LiveRequest,
        reservation: Reservation,
        lookup: CacheLookup | None = None,
        edit_rules: EditRules | None = None,
    ) -> None:
        """Prepare; nothing runs before the request has a slot. `lookup` keeps the answer if it is computed whole.

        `edit_rules` reads the answer to a request for the next edit.
        """
        self.request = request
        self.live = live
        self.marks = live.marks
        self.is_rate_limited = False
        """Whether it was shed because its caller is over a limit; nothing was charged for it then."""
        self.outcome: Outcome | None = None
        """How it has ended; None while it lives."""
        self._services = services
        self._reservation = reservation
        self._mailbox = Mailbox(services.delta_pause_s)
        self._edit_rules = edit_rules
        self._edit: Edit | None = None
        self._rules: AnswerRules | None = edit_rules
        """Made when there is text: most requests are dropped before."""
        self._num_characters = 0
        self._lookup = lookup
        self._kept_text = StringIO()
        """The text that was sent, if it is to be kept."""
        self._cached: CachedAnswer | None = None
        self._is_end_written = False

    @property
    def awaits_output(self) -> bool:
        """Whether it lives and has had no output."""
        return self.outcome is None and self.marks.first_output is None

    @property
    def has_work(self) -> bool:
        """Whether the model has anything to do: a next edit needs lines that may change."""
        return self.request.next_edit is None or self._edit_rules is not None

    # The caller's side

    def listen(self, on_event: Callable[[], None]) -> None:
        """Call `on_event` whenever `take_nowait` may return a part."""
        self._mailbox.listen(on_event)

    def ignore(self) -> None:
        """Remove the callback of `listen`."""
        self._mailbox.ignore()

    def take_nowait(self) -> AnswerPart | None:
        """Return the next part of the answer, if there is one."""
        return self._mailbox.get_nowait()

    def note_end_written(self) -> None:
        """Report that the end was written."""
        self._is_end_written = True
        if self.marks.ended is not None:
            self._services.emit(EndWritten(self.request, self._services.clock.now() - self.marks.ended))

    def cancel(self, outcome: Outcome = CANCELLED) -> None:
        """End the request, if it has not ended, and abort its generation."""
        self._services.cancel(self.request.id, outcome)

    def leave(self, outcome: Outcome = CANCELLED) -> None:
        """Read no further. Ends the request, if it has not ended, and reports an End that was not written."""
        self.cancel(outcome)
        self.ignore()
        if not self._is_end_written:
            self._is_end_written = True
            self._services.emit(EndUnwritten(self.request))

    # The runner's side, see `Reader`

    def generate(self, progress: Progress) -> Coroutine[Any, Any, None]:
        """Generate from the request's own prompt."""
        return self._services.generator.generate(self.request, self._reservation, progress)

    def receive(self, text: str) -> None:
        """Take new text, and pass on the part that the text rules allow."""
        rules = self._text_rules()
        if not rules.is_done:
            self._put(rules.feed(text))

    def finish(self, reason: FinishReason | None) -> Outcome | None:
        """Return how the answer ended, if it did: by a rule, or because its generation did."""
        rules = self._text_rules()
        if rules.is_done:
            reason = FinishReason.STOP
        elif reason is None:
            return None
        else:
            self._put(rules.finish(is_cut=reason is FinishReason.LENGTH))
        if self._edit_rules is not None and reason is FinishReason.STOP:
            self._edit = self._edit_rules.edit
        return Outcome(reason)

    def give(self, answer: CachedAnswer) -> None:
        """Answer with a known answer. The request has had no output and is about to end."""
        self._cached, self._lookup = answer, None
        self.marks.first_output = self.marks.last_output = self._services.clock.now()
        self._put(answer.text)

    def end(self, outcome: Outcome, usage: Usage | None = None) -> None:
        """Close the answer. After a supersede, unread text is dropped."""
        services = self._services
        self.outcome = outcome
        self.marks.ended = services.clock.now()
        if outcome.reason is FinishReason.SUPERSEDED:
            self._mailbox.discard_pending_nowait()
        usage = usage or Usage()
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
        end = End(outcome, usage, timings_of(self.marks, self.marks.ended), edit=edit)
        self._mailbox.close_nowait(end)
        self._reservation.settle(0, self.marks.ended)
        if self._num_characters and self.marks.first_output is not None:
            ttft_s = self.marks.first_output - self.marks.received
            cache_level = CacheLevel.NONE if self._cached is None else self._cached.level
            services.answered(self.request, self._num_characters, ttft_s, cache_level)
        services.emit(RequestEnded(self.request, end, self.marks, has_text=self._num_characters > 0))
        if self._lookup is not None and outcome.reason in _WHOLE:
            self._lookup.keep(self._finished(end))

    def _finished(self, end: End) -> FinishedAnswer:
        usage, timings = end.usage, end.timings
        return FinishedAnswer(
            self._kept_text.getvalue(),
            end.outcome.reason,
            num_typed=self.marks.num_typed,
            num_prompt_tokens=usage.prompt_tokens,
            num_completion_tokens=usage.completion_tokens,
            engine_s=(timings.prefill_ms + timings.decode_ms) / _MS_PER_S,
        )

    def _put(self, text: str) -> None:
        if self._lookup is not None:
            self._kept_text.write(text)
        self._count(text)
        self._mailbox.put_nowait(text)

    def _count(self, text: str) -> None:
        """Count text in UTF-16 code units, as editors report what of it was accepted."""
        self._num_characters += len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2

    def _text_rules(self) -> AnswerRules:
        if self._rules is None:
            self._rules = TextRules(self.request)
        return self._rules


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
