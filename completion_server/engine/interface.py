"""What the rooms above may ask of an engine, and what it answers. Knows nothing of users, queues or the wire."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from completion_server.core.request import Sampling


class EngineDeadError(Exception):
    """The engine can't serve any more: it died, hung, or has not started yet. Every open generation gets it."""


@dataclass(frozen=True, slots=True)
class Job:
    """One generation."""

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


@dataclass(frozen=True, slots=True)
class Output:
    """What one or more engine steps added to a generation."""

    text: str
    """New text, always whole characters."""
    num_tokens: int
    """New tokens."""
    finish: str | None = None
    """None while it goes on, "stop" where the model or a stop token ended it, "length" at max_tokens."""
    cached_prompt_tokens: int = 0
    """Prompt tokens that were served from the prefix cache; the same on every output."""
    drafted_tokens: int = 0
    """Draft tokens proposed so far."""
    accepted_draft_tokens: int = 0
    """Of these, accepted so far."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What was loaded."""

    model: str
    max_model_len: int
    """Prompt and completion together, in tokens."""
    draft_model: str = ""
    num_speculative_tokens: int = 0
    max_num_seqs: int = 0
    """Generations that can run in one step."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot of an engine's own counters."""

    num_running: int = 0
    num_waiting: int = 0
    """Generations in the engine's own queue; stays 0 when the scheduler above does its work."""
    num_generated_tokens: int = 0
    """Tokens computed since start, wanted or not."""
    num_unwanted_tokens: int = 0
    """Of these, tokens computed for a generation after it was aborted."""
    kv_usage: float = 0.0
    """Share of the KV cache in use by live generations, 0 to 1."""


class Engine(Protocol):
    """A loaded model that continues token sequences."""

    @property
    def info(self) -> EngineInfo:
        """What was loaded. Defined once `start` has returned."""
        ...

    @property
    def is_alive(self) -> bool:
        """Whether it has started and has not been seen to die. A hung engine looks alive."""
        ...

    async def start(self) -> None:
        """Load the model and be ready to generate.

        Raises:
            EngineDeadError: it could not be started; the message says why.

        """
        ...

    def generate(self, job: Job) -> AsyncGenerator[Output]:
        """Generate. Closing the generator, or cancelling the task that consumes it, aborts the work in the engine.

        Raises:
            EngineDeadError: the engine died before the generation ended.

        """
        ...

    def stats(self) -> EngineStats:
        """Return the engine's counters as last reported; never waits."""
        ...

    async def stop(self) -> None:
        """Free everything, whatever state the engine is in. May be called more than once."""
        ...
