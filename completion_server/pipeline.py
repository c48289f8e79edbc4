"""A request's way through the rooms: admission, scheduling, prompt, engine, streaming, and back out.

The rooms don't know each other; this module joins them, and rpc sees only it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Protocol

from completion_server.admission.gate import Gate
from completion_server.core.clock import Clock
from completion_server.core.errors import CompletionError, UnavailableError
from completion_server.core.events import Marks, Observer
from completion_server.core.outcome import End, Event, FinishReason, Outcome, Timings, Usage
from completion_server.core.request import Request, Trigger
from completion_server.engine.interface import EngineDeadError, Job, Output
from completion_server.engine.supervisor import SupervisedEngine
from completion_server.prompt.builder import Prompt
from completion_server.scheduling.book import CANCELLED, Claim
from completion_server.scheduling.runner import Runner
from completion_server.streaming.mailbox import Mailbox
from completion_server.streaming.text import TextRules

_INLINE_CHARACTERS = 16_384
"""Up to this much text the prompt is built on the event loop: handing it to a thread would take longer."""

_FINISH_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


class Prompts(Protocol):
    """Turns a request into token ids; may be called from several threads at once."""

    def build(self, request: Request) -> Prompt:
        """Return the prompt. Raises InvalidRequestError where it can't fit."""
        ...


class Pipeline:
    """Takes requests in."""

    def __init__(
        self,
        *,
        gate: Gate,
        runner: Runner,
        prompts: Prompts,
        engine: SupervisedEngine,
        clock: Clock,
        observer: Observer,
        is_lane_per_session: bool = False,
        retry_after_ms: int = 1000,
    ) -> None:
        """Join the rooms."""
        self.gate = gate
        self.runner = runner
        self.prompts = prompts
        self.engine = engine
        self.clock = clock
        self.observer = observer
        self.retry_after_ms = retry_after_ms
        self._is_lane_per_session = is_lane_per_session

    def open(self, request: Request) -> "Completion":
        """Take a request in and return its answer, perhaps already ended.

        Raises:
            UnavailableError: the server can't serve now.

        """
        self.gate.check()
        completion = Completion(self, request, self._claim(request))
        completion.marks.admitted = self.clock.now()
        self.runner.submit_nowait(completion)
        return completion

    def _claim(self, request: Request) -> Claim:
        caller = request.caller
        owner = ("user", caller.user) if caller.user else ("session", caller.session)
        session = caller.session if self._is_lane_per_session else ""
        lane = (caller.tenant, *owner, session, request.trigger is Trigger.PREFETCH)
        return Claim(request.id, lane, caller.session, request.sequence, request.trigger, request.deadline)


class Completion:
    """One request and its answer: the runner drives one side, the caller reads the other."""

    def __init__(self, pipeline: Pipeline, request: Request, claim: Claim) -> None:
        """Prepare; nothing runs before it has a slot."""
        self.request = request
        self.claim = claim
        self.marks = Marks(request.received_at)
        self._pipeline = pipeline
        self._mailbox = Mailbox()
        self._prompt: Prompt | None = None
        self._cached_prompt_tokens = 0
        self._num_tokens = 0
        self._drafted_tokens = 0
        self._accepted_draft_tokens = 0

    async def events(self) -> AsyncIterator[Event]:
        """Yield deltas as they come, merged where the reader is slow, then the end."""
        while True:
            event = await self._mailbox.get()
            yield event
            if isinstance(event, End):
                ended = self.marks.ended
                if ended is not None:
                    self._pipeline.observer.request_streamed(self._pipeline.clock.now() - ended)
                return

    def close(self, outcome: Outcome = CANCELLED) -> None:
        """End the request, if it has not ended, and stop what goes on for it."""
        self._pipeline.runner.cancel_nowait(self.request.id, outcome)

    async def run(self) -> Outcome:
        """Build the prompt, generate and apply the text rules, while holding a slot."""
        clock = self._pipeline.clock
        self.marks.started = clock.now()
        try:
            prompt = self._prompt = await self._build_prompt()
            self.marks.prompted = clock.now()
            return await self._generate(prompt)
        except EngineDeadError as error:
            msg = "the engine failed and is being restarted"
            raise UnavailableError(msg, retry_after_ms=self._pipeline.retry_after_ms) from error

    async def _build_prompt(self) -> Prompt:
        request = self.request
        build = self._pipeline.prompts.build
        num_characters = len(request.prefix) + len(request.suffix) + sum(len(s.text) for s in request.snippets)
        if num_characters <= _INLINE_CHARACTERS:
            return build(request)
        return await asyncio.to_thread(build, request)

    async def _generate(self, prompt: Prompt) -> Outcome:
        request = self.request
        rules = TextRules(request)
        job = Job(
            id=request.id,
            prompt_token_ids=prompt.token_ids,
            max_tokens=request.max_tokens,
            sampling=request.sampling,
            stop_token_ids=prompt.stop_token_ids,
            priority=request.trigger,
            cache_salt=request.caller.tenant,
        )
        async with aclosing(self._pipeline.engine.generate(job)) as outputs:
            async for output in outputs:
                finish = self._take(output, rules)
                if finish is not None:
                    return Outcome(finish)
        msg = "the engine ended a generation without saying why"
        raise CompletionError(msg)

    def _take(self, output: Output, rules: TextRules) -> FinishReason | None:
        """Account for an output and pass its text on; return why the completion ended, if it did."""
        now = self._pipeline.clock.now()
        if self.marks.first_output is None:
            self.marks.first_output = now
        self.marks.last_output = now
        self._num_tokens += output.num_tokens
        self._cached_prompt_tokens = output.cached_prompt_tokens
        self._drafted_tokens = output.drafted_tokens
        self._accepted_draft_tokens = output.accepted_draft_tokens
        text = rules.feed(output.text)
        finish = None if output.finish is None else _FINISH_REASONS[output.finish]
        if rules.is_done:
            finish = FinishReason.STOP
        elif finish is not None:
            text += rules.finish(is_cut=finish is FinishReason.LENGTH)
        if text:
            self._mailbox.put_nowait(text)
        return finish

    def end(self, outcome: Outcome) -> None:
        """Close the answer. After a supersede no text that is still here is sent."""
        self.marks.ended = self._pipeline.clock.now()
        if outcome.reason is FinishReason.SUPERSEDED:
            self._mailbox.discard_pending_nowait()
        end = End(outcome, self._usage(), self._timings(self.marks.ended))
        self._mailbox.close_nowait(end)
        self._pipeline.observer.request_ended(self.request, end, self.marks)

    def _usage(self) -> Usage:
        return Usage(
            prompt_tokens=len(self._prompt.token_ids) if self._prompt else 0,
            cached_prompt_tokens=self._cached_prompt_tokens,
            completion_tokens=self._num_tokens,
            drafted_tokens=self._drafted_tokens,
            accepted_draft_tokens=self._accepted_draft_tokens,
        )

    def _timings(self, ended: float) -> Timings:
        """Split the time since receipt; a stage that was cut short lasts until the end."""
        marks = self.marks
        return Timings(
            queue_ms=_between_ms(marks.received, marks.started, ended),
            tokenise_ms=_between_ms(marks.started, marks.prompted, ended),
            prefill_ms=_between_ms(marks.prompted, marks.first_output, ended),
            decode_ms=_between_ms(marks.first_output, marks.last_output, ended),
            total_ms=(ended - marks.received) * 1000,
        )


def _between_ms(begin: float | None, end: float | None, ended: float) -> float:
    if begin is None:
        return 0.0
    return ((ended if end is None else end) - begin) * 1000
