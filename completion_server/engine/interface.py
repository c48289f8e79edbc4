"""The interface of an engine: the requests that it takes, the data that it returns, and its errors.

Knows nothing of users, queues, the wire or the policy that chooses the number of speculative tokens.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from completion_server.core.immutable import immutable
from completion_server.core.request import Sampling

SpeculationLookup = tuple[int, ...]
"""K, the number of speculative tokens, by the number of sequences in a step, from 0 to `max_num_seqs`.

vLLM's scheduler calls this list `dynamic_sd_lookup`. Entry 0 is never used.
"""


NGRAM = "ngram"
"""In place of a draft model: drafts are copied from where the last tokens stand earlier in the prompt."""


SEPARATED = "\0separated#"
"""Begins the salts of a caller that uses no salt both while drafts are on and while they are off. The salts of clients
are hexadecimal digits, so none begins so."""


class EngineDeadError(Exception):
    """The engine can't serve: it died, hung, or has not started yet. Every open generation ends with this error."""


@immutable
class GenerationRequest:
    """A prompt to continue, and how to continue it."""

    id: str
    prompt_token_ids: list[int]
    max_tokens: int
    sampling: Sampling = Sampling()
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the generation. Their text is still part of the output, so that the text rules see it."""
    priority: int = 0
    """The smaller value runs first."""
    cache_salt: str = ""
    """Prompts share prefix-cache entries only under the same salt."""
    begins_with: str = ""
    """Text with which the answer must begin, at any temperature, drafted or not. The outputs leave it out."""
    num_beginning_tokens: int = 0
    """Tokens for that text, beside `max_tokens`."""
    author: str = ""
    """Drafts may hold tokens of earlier answers to the same author; "" has none."""
    trace_headers: Mapping[str, str] | None = None
    """Headers of W3C Trace Context, under which the engine makes its own spans; None if the request is not sampled."""


@immutable
class Output:
    """The tokens that one or more engine steps added to a generation."""

    text: str
    """New text, always whole characters."""
    num_tokens: int
    """New tokens."""
    finish: str | None = None
    """None while the generation runs, "stop" if the model or a stop token ended it, "length" at max_tokens."""
    cached_prompt_tokens: int = 0
    """Prompt tokens that were served from the prefix cache; the same on every output."""
    drafted_tokens: int = 0
    """Draft tokens proposed so far."""
    accepted_draft_tokens: int = 0
    """Draft tokens accepted so far."""


@immutable
class EngineInfo:
    """The loaded models and their limits."""

    model: str
    max_model_len: int
    """Prompt and completion together, in tokens."""
    draft_model: str = ""
    """The draft model, or `NGRAM`; "" without drafts."""
    num_speculative_tokens: int = 0
    """The largest number of speculative tokens (K) for a step; 0 without speculation."""
    max_num_seqs: int = 0
    """Generations that can run in one step."""
    speculation_lookup: SpeculationLookup = ()
    """K by number of sequences at start."""
    speculation_locked_reason: str = ""
    """Why K can't be changed on the running engine; "" if it can."""
    can_heal: bool = True
    """Whether answers can be made to begin with given text."""
    revision: str = ""
    """The model's revision, of which the supervisor knows; "" if it is not known."""
    draft_revision: str = ""


@immutable
class EngineStats:
    """A snapshot of an engine's own counters."""

    num_running: int = 0
    num_waiting: int = 0
    """Generations in the engine's own queue; stays 0 when the scheduler above does its work."""
    num_generated_tokens: int = 0
    """Tokens computed since start, those for aborted generations included."""
    num_aborted_tokens: int = 0
    """Tokens computed for a generation after it was aborted."""
    kv_usage: float = 0.0
    """Share of the KV cache in use by live generations, 0 to 1."""


@immutable
class EngineStep:
    """The duration and the yield of one engine step."""

    num_seqs: int
    """Generations that got tokens."""
    num_tokens: int
    """Tokens that they got."""
    seconds: float | None = None
    """Time since the end of the previous step; None if the engine may have been idle in between."""
    has_prompts: bool = False
    """Whether the step also computed prompts, whole or in part."""
    drafted: tuple[int, ...] = ()
    """Draft tokens that it verified, by position; as long as the longest draft."""
    accepted: tuple[int, ...] = ()
    """Draft tokens that it accepted, by position; as long as `drafted`."""
    has_undrafted: bool = False
    """Whether the requests of some generations refused drafts. Its duration and yield then do not depend on K alone."""

    @property
    def num_speculative_tokens(self) -> int:
        """K: the length of the longest draft."""
        return len(self.drafted)


class Sink(Protocol):
    """Receives what becomes of one generation. Its methods return at once and must not raise."""

    def push(self, output: Output, /) -> None:
        """Take an output; the last one has a finish reason."""
        ...

    def fail(self, error: Exception, /) -> None:
        """Take the error that ended the generation, such as EngineDeadError."""
        ...


class Work(Protocol):
    """One generation in an engine."""

    def abort(self) -> None:
        """Stop the work. Its sink hears nothing more. Does nothing after the last output or an error."""
        ...


class SpeculationControl:
    """Changes the number of speculative tokens (K) of a running engine, and knows the cache salts that follow from it.

    A prompt that was computed while drafts were switched off has no draft KV, so its salt is another one than that of a
    prompt that is computed later. Drafts that are copied from the prompt have no KV at all.
    """

    def __init__(self, info: EngineInfo, publish: Callable[[SpeculationLookup, bool], None] | None = None) -> None:
        """Begin with the lookup of the start. `publish` is called with each change, and whether drafts are off."""
        self._info = info
        self._publish = publish
        self._lookup: SpeculationLookup | None = None
        self._is_off = False
        self._epoch = 0
        """How often drafts were switched on again."""

    @property
    def lookup(self) -> SpeculationLookup:
        """The active K by number of sequences."""
        return self._info.speculation_lookup if self._lookup is None else self._lookup

    def set_lookup(self, lookup: Sequence[int]) -> None:
        """Make `lookup` active from the next step on; never waits.

        Running generations continue, and greedy ones produce the same text as without the change.

        After `switch_off` no prompt takes blocks from the prefix cache that were computed before: the draft model has
        no KV for some of them.

        Raises:
            ValueError: `lookup` does not fit this engine; see `check_lookup`.

        """
        self.change(lookup, is_off=False)

    def switch_off(self) -> None:
        """Set K = 0, and do not run the draft model at all, neither for prompts, until the next `set_lookup`.

        With a lookup of zeros it still computes prompts, so that its KV cache is complete when K rises.
        """
        self.change(constant_lookup(0, self._info.max_num_seqs), is_off=True)

    def replaced(self, info: EngineInfo) -> None:
        """Take another engine, which has just started, and set its K, if K was ever set."""
        self._info = info
        if self._lookup is not None and self._publish is not None:
            self._publish(self._lookup, self._is_off)

    def salt(self, cache_salt: str) -> str:
        """Return the salt of a prompt that is computed now.

        While drafts are off, prompts may use all blocks; after they are switched on, only newer blocks.
        """
        is_changed = self._epoch and not cache_salt.startswith(SEPARATED)
        return f"{cache_salt}#{self._epoch}" if is_changed else cache_salt

    def change(self, lookup: Sequence[int], *, is_off: bool) -> None:
        """Set the lookup, and whether the draft model does not run at all; see `set_lookup` and `switch_off`."""
        checked = check_lookup(lookup, self._info)
        self._epoch += self._is_off and not is_off and self._info.draft_model != NGRAM
        self._lookup, self._is_off = checked, is_off
        if self._publish is not None:
            self._publish(checked, is_off)


class Engine(Protocol):
    """A loaded model that continues token sequences.

    The members with a body are optional: an engine that inherits from this class gets defaults.
    """

    @property
    def info(self) -> EngineInfo:
        """The loaded models and their limits. Defined once `start` has returned."""
        ...

    @property
    def is_alive(self) -> bool:
        """Whether it has started and has not been seen to die. A hung engine looks alive."""
        ...

    async def start(self) -> None:
        """Load the model and be ready to generate.

        Raises:
            EngineDeadError: it could not be started; the message has the reason.

        """
        ...

    def submit(self, request: GenerationRequest, sink: Sink) -> Work:
        """Begin to generate; never waits. `sink` hears nothing before this has returned.

        Raises:
            EngineDeadError: the engine can't serve.
            ValueError: the request does not fit.

        """
        ...

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Output]:
        """Generate, for a caller that waits. Outputs that it did not take yet are merged.

        Closing the generator, or cancelling the task that consumes it, aborts the work in the engine.

        Raises:
            EngineDeadError: the engine died before the generation ended.

        """
        inbox = _Inbox()
        work = self.submit(request, inbox)
        try:
            while True:
                output = await inbox.take()
                yield output
                if output.finish is not None:
                    return
        finally:
            work.abort()

    def stats(self) -> EngineStats:
        """Return the engine's counters as last reported; never waits."""
        ...

    @property
    def speculation(self) -> SpeculationControl | None:
        """Changes K; None unless the engine is alive and `info.speculation_locked_reason` is empty."""
        return None

    def watch_steps(self, on_step: Callable[[EngineStep], None]) -> None:
        """Call `on_step`, instead of an earlier callback, after every step. An engine without steps never calls it."""
        del on_step

    def cpu_seconds(self) -> float | None:
        """Return the CPU time that its processes have used; None if that does not show whether they compute."""
        return None

    async def stop(self) -> None:
        """Free everything, in any state of the engine. May be called more than once."""
        ...


class _Inbox:
    """A sink for one reader that waits. It has one slot, in which unread outputs are merged."""

    def __init__(self) -> None:
        self._output: Output | None = None
        self._error: Exception | None = None
        self._has_news = asyncio.Event()

    def push(self, output: Output) -> None:
        before = self._output
        if before is not None:
            text, num_tokens = before.text + output.text, before.num_tokens + output.num_tokens
            output = replace(output, text=text, num_tokens=num_tokens)
        self._output = output
        self._has_news.set()

    def fail(self, error: Exception) -> None:
        self._error = error
        self._has_news.set()

    async def take(self) -> Output:
        await self._has_news.wait()
        self._has_news.clear()
        output, self._output = self._output, None
        if self._error is not None:
            if output is None:
                raise self._error
            self._has_news.set()
        assert output is not None
        return output


def constant_lookup(num_speculative_tokens: int, max_num_seqs: int) -> SpeculationLookup:
    """Return the lookup with one K for all numbers of sequences."""
    return (0, *[num_speculative_tokens] * max_num_seqs)


def trial_ks(max_k: int) -> tuple[int, ...]:
    """Return the Ks above 0 that a trial at start measures, and for which an engine on a GPU captures graphs."""
    return tuple(sorted({1, max_k // 2, max_k} - {0}))


def check_lookup(lookup: Sequence[int], info: EngineInfo) -> SpeculationLookup:
    """Return `lookup` as a tuple.

    Raises:
        ValueError: it has not one entry for each number of sequences, or an entry is not between 0 and the engine's
            `num_speculative_tokens`.

    """
    if len(lookup) != info.max_num_seqs + 1:
        msg = f"a lookup for this engine has {info.max_num_seqs + 1} entries, got {len(lookup)}"
        raise ValueError(msg)
    limit = info.num_speculative_tokens
    if not all(0 <= k <= limit for k in lookup):
        msg = f"K must be between 0 and the engine's {limit}, got {min(lookup)} to {max(lookup)}"
        raise ValueError(msg)
    return tuple(lookup)
