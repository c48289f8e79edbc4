"""One request and its answer, and the generation that it is answered from.

Usually they are born and end together. When a user types what is being generated, the older request ends and the
newer one takes its generation over: that goes on under its new owner, whose text rules see it from the cursor on.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from completion_server.core.clock import Clock
from completion_server.core.errors import CompletionError, UnavailableError
from completion_server.core.events import Marks, Observer
from completion_server.core.outcome import End, Event, FinishReason, Outcome, Timings, Usage
from completion_server.core.request import Caller, Request
from completion_server.engine.interface import EngineDeadError, GenerationRequest, Output
from completion_server.engine.settings import CacheScope
from completion_server.engine.supervisor import SupervisedEngine
from completion_server.prompt.builder import Prompt
from completion_server.prompt.layout import CHARACTERS_A_TOKEN
from completion_server.scheduling.book import CANCELLED
from completion_server.scheduling.claim import Claim
from completion_server.scheduling.runner import Runner
from completion_server.scheduling.typing_through import Ahead, typed_since
from completion_server.streaming.mailbox import Mailbox
from completion_server.streaming.text import TextRules

_INLINE_CHARACTERS = 16_384
"""Up to this much text the prompt is built on the event loop: handing it to a thread would take longer."""

_LEAST_SHARE_LEFT = 0.5
"""Of a request's max_tokens. A generation with less left is not continued for it: the answer would end too soon."""

_FINISH_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


class Prompts(Protocol):
    """Turns a request into token ids; may be called from several threads at once."""

    def build(self, request: Request) -> Prompt:
        """Return the prompt. Raises InvalidRequestError where it can't fit."""
        ...

    def expected_new_tokens(self, request: Request) -> int:
        """Return about how many of a request's prompt tokens the engine will have to compute; cheap."""
        ...


@dataclass(frozen=True, slots=True)
class Rooms:
    """What a completion passes through."""

    runner: Runner
    prompts: Prompts
    engine: SupervisedEngine
    clock: Clock
    observer: Observer
    retry_after_ms: int
    delta_pause_s: float = 0.0
    """Between two messages with text of one answer; the first and the last don't wait."""
    charge_tokens: Callable[[Caller, int], None] = lambda _caller, _num_tokens: None
    """Told how many tokens were computed for a caller."""
    answered: Callable[[Request, int], None] = lambda _request, _num_characters: None
    """Told the length of each answer that had text, in UTF-16 code units."""
    cache_scope: CacheScope = "user"
    """Whose prompts share entries of the prefix cache."""


class Completion:
    """One request and its answer: the runner drives one side, the caller reads the other."""

    def __init__(self, rooms: Rooms, request: Request, claim: Claim) -> None:
        """Prepare; nothing runs before it has a slot."""
        self.request = request
        self.claim = claim
        self.marks = Marks(request.received_at)
        self._rooms = rooms
        self._mailbox = Mailbox(rooms.delta_pause_s)
        self._rules: TextRules | None = None
        """Made when there is text: most requests are dropped before."""
        self._ahead = Ahead("")
        self._num_characters = 0
        self.is_rate_limited = False
        """Whether it was shed because its caller is over a limit; nothing was charged for it then."""
        self._num_charged = claim.num_new_tokens
        self._begun = Generation(rooms, self)
        """The generation that `run` runs, whoever owns it by then."""
        self._generation: Generation | None = self._begun
        """The generation that this request is answered from; None once it is another's or of no use."""

    async def events(self) -> AsyncIterator[Event]:
        """Yield deltas as they come, merged where the reader is slow, then the end."""
        while True:
            event = await self._mailbox.get()
            yield event
            if isinstance(event, End):
                self.note_streamed()
                return

    def listen(self, on_news: Callable[[], None]) -> None:
        """Have `on_news` called whenever `take_nowait` may have something; instead of `events`, where that is dear."""
        self._mailbox.listen(on_news)

    def ignore(self) -> None:
        """Call nobody any more."""
        self._mailbox.ignore()

    def take_nowait(self) -> Event | None:
        """Return the next event, if there is one."""
        return self._mailbox.get_nowait()

    def note_streamed(self) -> None:
        """Say that the end was written."""
        if self.marks.ended is not None:
            self._rooms.observer.request_streamed(self._rooms.clock.now() - self.marks.ended)

    def settle(self) -> int:
        """Return the tokens that were charged in advance, for what was really computed to take their place; 0 later."""
        num_charged, self._num_charged = self._num_charged, 0
        return num_charged

    def close(self, outcome: Outcome = CANCELLED) -> None:
        """End the request, if it has not ended, and stop what goes on for it."""
        self._rooms.runner.cancel_nowait(self.request.id, outcome)

    async def run(self) -> Outcome | None:
        """Generate an answer, while holding a slot; None where a request that took it over can't use it."""
        self.marks.started = self._rooms.clock.now()
        if self._begun.owner is self:
            self._generation = self._begun
        try:
            return await self._begun.run()
        except EngineDeadError as error:
            msg = "the engine failed and is being restarted"
            raise UnavailableError(msg, retry_after_ms=self._rooms.retry_after_ms) from error

    def can_take_over(self, other: "Completion") -> bool:
        """Tell whether the generation of an older request says, or may yet say, what this one's user has typed."""
        generation = other._generation
        if generation is None or generation.is_over:
            return False
        typed = typed_since(generation.request, self.request)
        if typed is None or not (generation.text.startswith(typed) or typed.startswith(generation.text)):
            return False
        return generation.num_tokens_left_after(typed) >= self.request.max_tokens * _LEAST_SHARE_LEFT

    def take_over(self, other: "Completion") -> None:
        """Be the owner of another's generation: take what it has said beyond what was typed since, and what comes."""
        generation, other._generation = other._generation, None
        assert generation is not None
        now = self._rooms.clock.now()
        self._generation = generation
        self.marks.started = self.marks.prompted = now
        typed = typed_since(generation.request, self.request)
        assert typed is not None
        self._rooms.observer.generation_taken_over(generation.num_tokens)
        self._ahead = Ahead(typed)
        generation.owner = self
        if generation.num_tokens:
            self.take(generation.text, now)

    def take(self, text: str, now: float) -> None:
        """Pass on what of new text goes beyond what was typed, as far as the rules let it."""
        text = self._ahead.feed(text)
        rules = self._text_rules()
        if self._ahead.is_ahead or self._ahead.has_parted or rules.is_done:
            return
        if self.marks.first_output is None:
            if self._generation is not self._begun and not text:
                return  # all of it was typed
            assert self._generation is not None
            self.marks.first_output = now
            self.marks.tokens_at_first_output = self._generation.num_tokens
            num_new = self._generation.num_new_tokens
            self._rooms.runner.first_token_nowait(self.request.id, num_new)
        self.marks.last_output = now
        self._put(rules.feed(text))

    def _put(self, text: str) -> None:
        self._num_characters += len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2
        self._mailbox.put_nowait(text)

    def finish(self, finish: FinishReason | None) -> Outcome | None:
        """Return how the answer ended, if it did: by a rule, or because its generation did."""
        rules = self._text_rules()
        if rules.is_done:
            return Outcome(FinishReason.STOP)
        if finish is None:
            return None
        self._put(rules.finish(is_cut=finish is FinishReason.LENGTH))
        return Outcome(finish)

    def _text_rules(self) -> TextRules:
        if self._rules is None:
            self._rules = TextRules(self.request)
        return self._rules

    def is_of_no_use(self, finish: FinishReason | None) -> bool:
        """Tell whether the generation that it took over says something else than what was typed, or not enough."""
        if self._ahead.has_parted:
            return True
        return (finish is not None and self._ahead.is_ahead) or (
            finish is FinishReason.LENGTH and self.marks.first_output is None
        )

    def leave(self) -> None:
        """Want nothing more of a generation that is of no use; a new one is to begin."""
        assert self._generation is not None
        self._rooms.observer.generation_left(self._generation.num_tokens)
        self._generation = None
        self._ahead = Ahead("")
        self.marks.started = self.marks.prompted = self.marks.first_output = self.marks.last_output = None

    def end(self, outcome: Outcome) -> None:
        """Close the answer. After a supersede no text that is still here is sent."""
        self.marks.ended = self._rooms.clock.now()
        if outcome.reason is FinishReason.SUPERSEDED:
            self._mailbox.discard_pending_nowait()
        usage = self._generation.usage() if self._generation is not None else Usage()
        end = End(outcome, usage, self._timings(self.marks.ended))
        self._mailbox.close_nowait(end)
        self._rooms.charge_tokens(self.request.caller, -self.settle())
        if self._num_characters:
            self._rooms.answered(self.request, self._num_characters)
        self._rooms.observer.request_ended(self.request, end, self.marks)
        self._let_go()

    def _let_go(self) -> None:
        """Hold nothing that holds this: it is freed with its last reader then, and not at some garbage collection."""
        self._generation = None
        if self._begun.owner is self:  # else it runs for another, perhaps from now on
            del self._begun

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


class Generation:
    """What the engine says to one prompt, for whoever owns it. Its tokens count for its last owner."""

    def __init__(self, rooms: Rooms, owner: Completion) -> None:
        """Belong to the request that it begins for."""
        self.request = owner.request
        """The request whose prompt it continues."""
        self.owner = owner
        self.text = ""
        """All that was said, before any rule."""
        self.num_tokens = 0
        self.num_new_tokens = 0
        """Prompt tokens that the engine computes: an estimate until its first output says how many were cached."""
        self.is_over = False
        """Whether its last word is said, or it failed."""
        self._rooms = rooms
        self._has_begun = False
        """Whether the engine was asked."""
        self._prompt: Prompt | None = None
        self._last: Output | None = None
        self._last_at: float | None = None

    async def run(self) -> Outcome | None:
        """Build the prompt and generate until the owner has enough; None where it has no use for it."""
        try:
            prompt = self._prompt = await self._build_prompt()
            self.num_new_tokens = prompt.num_new_tokens
            self._rooms.runner.prompt_ready_nowait(self.owner.request.id, prompt.num_new_tokens)
            if self.owner.marks.prompted is None:
                self.owner.marks.prompted = self._rooms.clock.now()
            return await self._generate(prompt)
        finally:
            self.is_over = True
            if self._has_begun:
                cost = self.num_new_tokens + self.num_tokens
                self._rooms.charge_tokens(self.request.caller, cost - self.owner.settle())

    def num_tokens_left_after(self, typed: str) -> int:
        """Return about how many tokens it may still give to a user who has typed `typed` since."""
        tokens_a_character = self.num_tokens / len(self.text) if self.text else 1 / CHARACTERS_A_TOKEN
        return self.request.max_tokens - round(len(typed) * tokens_a_character)

    async def _generate(self, prompt: Prompt) -> Outcome | None:
        request = self.request
        job = GenerationRequest(
            id=request.id,
            prompt_token_ids=prompt.token_ids,
            max_tokens=request.max_tokens,
            sampling=request.sampling,
            stop_token_ids=prompt.stop_token_ids,
            priority=request.trigger,
            cache_salt=cache_salt(request.caller, self._rooms.cache_scope),
        )
        self._has_begun = True
        async with aclosing(self._rooms.engine.generate(job)) as outputs:
            async for output in outputs:
                now = self._account(output)
                finish = None if output.finish is None else _FINISH_REASONS[output.finish]
                owner = self.owner
                owner.take(output.text, now)
                if owner.is_of_no_use(finish):
                    owner.leave()
                    return None
                outcome = owner.finish(finish)
                if outcome is not None:
                    self.is_over = True  # while the engine lets go of it
                    return outcome
        msg = "the engine ended a generation without saying why"
        raise CompletionError(msg)

    def usage(self) -> Usage:
        """Return what it has cost so far."""
        last = self._last
        return Usage(
            prompt_tokens=len(self._prompt.token_ids) if self._prompt else 0,
            cached_prompt_tokens=last.cached_prompt_tokens if last else 0,
            completion_tokens=self.num_tokens,
            drafted_tokens=last.drafted_tokens if last else 0,
            accepted_draft_tokens=last.accepted_draft_tokens if last else 0,
        )

    async def _build_prompt(self) -> Prompt:
        request = self.request
        build = self._rooms.prompts.build
        num_characters = len(request.prefix) + len(request.suffix) + sum(len(s.text) for s in request.snippets)
        if num_characters <= _INLINE_CHARACTERS:
            return build(request)
        return await asyncio.to_thread(build, request)

    def _account(self, output: Output) -> float:
        """Take an output into account and return when it came."""
        now = self._rooms.clock.now()
        if self._last_at is not None:
            self._rooms.runner.step_nowait(now - self._last_at)
        elif self._prompt is not None:
            self.num_new_tokens = len(self._prompt.token_ids) - output.cached_prompt_tokens
        self._last, self._last_at = output, now
        self.num_tokens += output.num_tokens
        self.text += output.text
        return now


def cache_salt(caller: Caller, scope: CacheScope) -> str:
    """Return the salt under which a caller's prompts share entries of the prefix cache.

    Under a common salt the number of cached tokens, and the time to a first token, would tell callers which text others
    have open.
    """
    return caller.tenant if scope == "tenant" else "\0".join(caller.owner)


def _between_ms(begin: float | None, end: float | None, ended: float) -> float:
    if begin is None:
        return 0.0
    return ((ended if end is None else end) - begin) * 1000
