"""What the rooms above may ask of an engine, and what it answers. Knows nothing of users, queues or the wire."""

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Protocol

from completion_server.core.request import Sampling
from completion_server.speculation.schedule import Schedule


class EngineDeadError(Exception):
    """The engine can't serve any more: it died, hung, or has not started yet. Every open generation gets it."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
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
    """Draft tokens for each step at most; 0 without speculation."""
    max_num_seqs: int = 0
    """Generations that can run in one step."""
    speculation_fixed_because: str = ""
    """Why the number of draft tokens can't be changed while it runs; "" where it can."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot of an engine's own counters."""

    num_running: int = 0
    num_waiting: int = 0
    """Generations in the engine's own queue; stays 0 when the scheduler above does its work."""
    num_generated_tokens: int = 0
    """Tokens computed since start, wanted or not."""
    num_wasted_tokens: int = 0
    """Of these, tokens computed for a generation after it was aborted."""
    kv_usage: float = 0.0
    """Share of the KV cache in use by live generations, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one engine step took and yielded."""

    num_seqs: int
    """Generations that got tokens."""
    num_tokens: int
    """Tokens that they got."""
    seconds: float | None = None
    """Since the end of the step before it; None where the engine may have rested in between."""
    has_prompts: bool = False
    """Whether the step also computed prompts, whole ones or pieces of them."""
    drafted: tuple[int, ...] = ()
    """Draft tokens that it verified, by position; as long as the longest draft."""
    accepted: tuple[int, ...] = ()
    """Of these, accepted; as long as `drafted`."""
    has_undrafted: bool = False
    """Whether some of these generations wanted no drafts: what it took and yielded then says nothing of K."""

    @property
    def num_draft_tokens(self) -> int:
        """K, that of the longest draft."""
        return len(self.drafted)


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

    def generate(self, job: GenerationRequest) -> AsyncGenerator[Output]:
        """Generate. Closing the generator, or cancelling the task that consumes it, aborts the work in the engine.

        Raises:
            EngineDeadError: the engine died before the generation ended.

        """
        ...

    def stats(self) -> EngineStats:
        """Return the engine's counters as last reported; never waits."""
        ...

    @property
    def speculation(self) -> Schedule:
        """The draft lengths in force. Defined once `start` has returned."""
        ...

    def set_speculation(self, schedule: Schedule) -> None:
        """Change the draft lengths from the next step on; never waits.

        Generations go on, and greedy ones say what they would have said.

        Raises:
            ScheduleError: a row has more draft tokens than the engine was started with.
            SpeculationFixedError: this engine can't; `info` says why.
            EngineDeadError: it has not started, or died.

        """
        ...

    def watch_steps(self, on_step: Callable[[Step], None]) -> None:
        """Tell `on_step`, and nobody else any more, of every step."""
        ...

    def cpu_seconds(self) -> float | None:
        """Return the CPU time that its processes have used; None if that does not show whether they compute."""
        ...

    async def stop(self) -> None:
        """Free everything, whatever state the engine is in. May be called more than once."""
        ...
