"""Gives the text of a generation to the requests that read it, and tells the book what that means for them."""

import logging
from collections.abc import Callable

from completion_server.core.clock import Clock
from completion_server.core.errors import CompletionError
from completion_server.core.events import Emit, EngineStalled, Event, GenerationDiverged
from completion_server.core.outcome import FinishReason, Outcome
from completion_server.engine.interface import Output
from completion_server.scheduling.actions import Action
from completion_server.scheduling.book import Book
from completion_server.scheduling.generation import PromptReady
from completion_server.scheduling.limiter import ConcurrencyLimiter
from completion_server.scheduling.work import HeldRequest, Work

logger = logging.getLogger(__name__)

INTERNAL_ERROR = Outcome(FinishReason.ERROR, error=CompletionError("internal error; the server's log has more"))


class Delivery:
    """Delivers what the engine generates. A part of the runner, which carries out the book's actions."""

    def __init__(
        self,
        book: Book,
        clock: Clock,
        limiter: ConcurrencyLimiter | None,
        emit: Emit,
        carry_out: Callable[[list[Action]], None],
    ) -> None:
        """Report to `book`; `carry_out` carries its actions out."""
        self._book = book
        self._clock = clock
        self._limiter = limiter
        self._emit = emit
        self._carry_out = carry_out

    def prompt_ready(self, work: Work, ready: PromptReady) -> None:
        """Note that the prompt of a generation is built."""
        work.generation.start(ready)
        self._book.prompt_ready(work.request.id, ready.num_new_tokens)
        for request in work.readers:
            if request.subscriber.marks.prompted is None:  # else it has reattached meanwhile
                request.subscriber.marks.prompted = self._clock.now()

    def take(self, work: Work, output: Output) -> Outcome | None:
        """Give an output to the requests that read the generation.

        The ends of their answers are reported to the book, except that of the last reader, with which the generation
        is over: this returns its outcome, None if it diverged or if the generation goes on.
        """
        now = self._clock.now()
        self._note_progress(now)
        if (step_s := work.generation.add(output, now)) is not None:
            is_stall = self._book.latency.stalls.has_delayed(now - step_s)
            self.follow_engine(None if is_stall else step_s)
        if output.finish is not None:
            self.close(work)
        for request in work.readers:
            if request.work is not work:  # it ended, or a newer request reads in its place, while others were served
                continue
            outcome = self._give(request, work, output, now)
            if outcome is None and request.subscription is not None:
                continue
            is_last = request is work.request and not work.joined
            if request.subscription is None:
                self._emit(GenerationDiverged(work.generation.num_tokens if is_last else 0))
            if is_last:
                self.close(work)
                return outcome
            self._stop_reading(request, work, outcome, now)
        return None

    def catch_up(self, request: HeldRequest, work: Work, event: Event) -> None:
        """Give the text generated so far to a request that begins to read.

        If that fails, the request ends, and the generation is aborted if no other request reads it.
        """
        now = self._clock.now()
        try:
            self._emit(event)
            if work.generation.num_tokens:
                self._pass_on(request, work, work.generation.text, now)
        except Exception:
            logger.exception("request %s could not read the generation of %s", request.id, work.generation.entry.id)
            self._carry_out(self._book.end(request.id, INTERNAL_ERROR, now))

    def close(self, work: Work) -> None:
        """Let no other request read a generation: it has no more text."""
        work.is_over = True
        self._book.generation_over(work.request.id)

    def follow_engine(self, step_s: float | None = None) -> None:
        """Adapt the number of slots to the engine's latest steps and first tokens."""
        if self._limiter is not None:
            first_token_s = self._book.latency.first_token_s
            num_slots = self._limiter.observe(first_token_s, self._book.num_occupied, step_s)
            if num_slots != self._book.num_slots:
                self._carry_out(self._book.resize(num_slots, self._clock.now()))

    def _note_progress(self, now: float) -> None:
        if stalled_s := self._book.latency.progressed(now):
            logger.warning("the engine had sent nothing for %.1f s", stalled_s)
            self._emit(EngineStalled(stalled_s))

    def _give(self, request: HeldRequest, work: Work, output: Output, now: float) -> Outcome | None:
        """Give an output to one request; return its outcome if that was its last one, or if its own code failed."""
        try:
            self._pass_on(request, work, output.text, now)
            return request.finish(output)
        except Exception:
            logger.exception("request %s failed", request.id)
            return INTERNAL_ERROR

    def _stop_reading(self, request: HeldRequest, work: Work, outcome: Outcome | None, now: float) -> None:
        """End a request whose answer is complete, or let it wait for a slot if it diverged; others read on."""
        if outcome is not None:
            self._carry_out(self._book.end(request.id, outcome, now))
            return
        if request is not work.request:
            work.leave(request)
        self._carry_out(self._book.diverged(request.id, now))

    def _pass_on(self, request: HeldRequest, work: Work, text: str, now: float) -> None:
        if request.pass_on(text, now):
            self._book.first_token(request.id, now, work.generation.num_new_tokens)
            if request is work.request:
                self.follow_engine()
