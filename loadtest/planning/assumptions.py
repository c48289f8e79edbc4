"""The assumptions of a plan: what each one means, its range, its default, and a low and a high estimate.

The command makes an option of each field. docs/capacity.md has the sources.
"""

from dataclasses import dataclass, field
from typing import Annotated, get_args, get_type_hints

from completion_server.core.checks import Above, Between, require_bounds

MAX_SESSIONS = 10_000_000


@dataclass(frozen=True, slots=True)
class Assumption:
    """One assumption: a field's text in the help, and its estimates."""

    text: str
    low: float | None = None
    """A low estimate; None for a choice, which is not estimated."""
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Users:
    """How people type, at the busiest time."""

    sessions: Annotated[int, Between(1, MAX_SESSIONS)]
    """Editors that are open at the busiest time."""
    requests_per_session_hour: Annotated[float | None, Above(0, 100_000), Assumption(
        "Requests of an open editor in an hour, from your own counts. Instead of the model of typing below.",
    )] = None  # fmt: skip
    typing_share: Annotated[float, Above(0, 1), Assumption(
        "Share of the open editors that somebody types in; the others are in the background.", 0.3, 0.8,
    )] = 0.5  # fmt: skip
    away_share: Annotated[float, Between(0, 0.999), Assumption(
        "Share of the time that somebody who types reads, thinks or is away.", 0.8, 0.95,
    )] = 0.87  # fmt: skip
    debounce_ms: Annotated[float, Between(0, 5000), Assumption(
        "An editor asks when no key came for this long.", 50.0, 150.0,
    )] = 50.0  # fmt: skip
    prefetch_share: Annotated[float, Between(0, 1), Assumption(
        "Prefetches, as a share of the keys. They cost as much as a request and are not shown themselves.", 0.0, 0.2,
    )] = 0.0  # fmt: skip
    cached_share: Annotated[float, Between(0, 0.99), Assumption(
        "Share of the requests that a completion cache answers without a GPU.", 0.0, 0.2,
    )] = 0.0  # fmt: skip

    def __post_init__(self) -> None:
        """Check the bounds."""
        require_bounds(self)


@dataclass(frozen=True, slots=True)
class Answers:
    """What a completion is, and when it is in time."""

    completion_tokens: Annotated[float, Above(0, 10_000), Assumption(
        "Tokens of a completion that nobody cuts short.", 10.0, 40.0,
    )] = 20.0  # fmt: skip
    tokens_per_s: Annotated[float, Above(0, 100_000), Assumption(
        "Tokens a second of one request while all slots are taken.", 100.0, 200.0,
    )] = 165.0  # fmt: skip
    first_token_ms: Annotated[float, Above(0, 10_000), Assumption(
        "From the start of a request's work to its first text.", 25.0, 80.0,
    )] = 40.0  # fmt: skip
    network_ms: Annotated[float, Between(0, 10_000), Assumption(
        "Between editor and server, there and back.", 5.0, 45.0,
    )] = 15.0  # fmt: skip
    within_ms: Annotated[float, Above(0, 60_000), Assumption(
        "A completion is in time if its first text comes so soon.",
    )] = 200.0  # fmt: skip
    in_time: Annotated[float, Between(0.5, 0.999), Assumption(
        "Share of the completions that must be in time at the busiest time.",
    )] = 0.95  # fmt: skip
    readable_ms: Annotated[float, Between(0, 10_000), Assumption(
        "A completion is shown if its text stands for so long before the next key.", 0.0, 500.0,
    )] = 200.0  # fmt: skip
    text_share: Annotated[float, Above(0, 1), Assumption(
        "Share of the answers that have text.", 0.6, 0.95,
    )] = 0.83  # fmt: skip
    shown_share: Annotated[float | None, Above(0, 1), Assumption(
        "Share of the requests whose completion is shown, from your own counts. Instead of the two above.",
    )] = None  # fmt: skip

    def __post_init__(self) -> None:
        """Check the bounds, and that time is left for the queue."""
        require_bounds(self)
        least = self.network_ms + self.first_token_ms
        if self.within_ms <= least:
            limit = f"must be above network_ms + first_token_ms ({least:g})"
            msg = f"within_ms: {limit}, got {self.within_ms:g}"
            raise ValueError(msg)

    @property
    def first_text_s(self) -> float:
        """From the request to its first text in the editor, without a queue."""
        return (self.network_ms + self.first_token_ms) / 1000

    @property
    def wait_budget_s(self) -> float:
        """The longest wait for a slot after which an answer is still in time."""
        return self.within_ms / 1000 - self.first_text_s

    @property
    def service_s(self) -> float:
        """How long an answer that nobody cuts short holds a slot."""
        return self.first_token_ms / 1000 + self.completion_tokens / self.tokens_per_s


@dataclass(frozen=True, slots=True)
class Gpu:
    """What one server can do: one GPU, or one group of GPUs that share a model."""

    slots: Annotated[int, Between(1, 4096), Assumption(
        "Requests that a server computes at once, each with --tokens-per-s.", 8, 128,
    )] = 32  # fmt: skip
    computed_tokens_per_s: Annotated[float, Above(0, 1e9), Assumption(
        "Tokens that a server computes a second at most: new prompt tokens, and tokens to verify.", 6000.0, 24_000.0,
    )] = 12_000.0  # fmt: skip
    max_busy: Annotated[float, Above(0, 1), Assumption(
        "Share of --computed-tokens-per-s to use at the busiest time.", 0.6, 0.9,
    )] = 0.8  # fmt: skip
    new_prompt_tokens: Annotated[float, Between(0, 1_000_000), Assumption(
        "Prompt tokens of a request that the prefix cache does not have, if it has the document.", 20.0, 100.0,
    )] = 40.0  # fmt: skip
    draft_tokens: Annotated[int, Between(0, 32), Assumption("Draft tokens of a step (K); 0 without speculation.")] = 5
    draft_acceptance: Annotated[float, Between(0, 0.99), Assumption(
        "Chance that a draft token is accepted after those before it.", 0.65, 0.9,
    )] = 0.82  # fmt: skip
    front_end_per_s: Annotated[float, Above(0, 1e6), Assumption(
        "Requests a second that the server's own process handles.", 400.0, 1500.0,
    )] = 900.0  # fmt: skip
    gpus_per_server: Annotated[int, Between(1, 64), Assumption(
        "GPUs of one server, over which its model is divided.",
    )] = 1  # fmt: skip

    def __post_init__(self) -> None:
        """Check the bounds."""
        require_bounds(self)

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a step gives a request on average: the accepted drafts and one more."""
        return sum(self.draft_acceptance**number for number in range(self.draft_tokens + 1))


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of a GPU, and what a document takes of it. GB are 10^9 bytes."""

    gpu_memory_gb: Annotated[float, Above(0, 10_000), Assumption(
        "Memory of a GPU.",
    )] = 80.0  # fmt: skip
    gpu_memory_share: Annotated[float, Above(0, 1), Assumption(
        "Share of it that the engine takes (vLLM's gpu_memory_utilization).", 0.85, 0.95,
    )] = 0.92  # fmt: skip
    weights_gb: Annotated[float, Above(0, 100_000), Assumption(
        "Weights of a server's models; --model calculates them.",
    )] = 15.35  # fmt: skip
    kv_bytes_per_token: Annotated[int, Between(1, 1_000_000_000), Assumption(
        "KV cache of a token in a server's models; --model calculates it.",
    )] = 843_776  # fmt: skip
    reserved_gb: Annotated[float, Between(0, 10_000), Assumption(
        "Activations and CUDA graphs of a GPU.", 2.0, 6.0,
    )] = 3.0  # fmt: skip
    document_tokens: Annotated[float, Above(0, 10_000_000), Assumption(
        "Prompt tokens of a document, all computed at a request that finds none of them in the cache.", 800.0, 2000.0,
    )] = 1500.0  # fmt: skip

    def __post_init__(self) -> None:
        """Check the bounds."""
        require_bounds(self)


@dataclass(frozen=True, slots=True)
class Money:
    """What it costs, and for how much use."""

    gpu_usd_hour: Annotated[float, Above(0, 10_000), Assumption(
        "Price of a GPU for an hour, with its part of the machine.", 1.5, 4.1,
    )] = 3.0  # fmt: skip
    mean_load: Annotated[float, Above(0, 1), Assumption(
        "Mean load over all hours that are paid for, as a share of the busiest time.", 0.1, 0.58,
    )] = 0.32  # fmt: skip

    def __post_init__(self) -> None:
        """Check the bounds."""
        require_bounds(self)


@dataclass(frozen=True, slots=True)
class Assumptions:
    """All of them."""

    users: Users
    answers: Answers = field(default_factory=Answers)
    gpu: Gpu = field(default_factory=Gpu)
    memory: Memory = field(default_factory=Memory)
    money: Money = field(default_factory=Money)


SECTIONS: dict[str, type] = get_type_hints(Assumptions)
"""The fields of `Assumptions` with their types."""


def assumptions_of(section: type) -> dict[str, Assumption]:
    """Return the assumptions of a section by the name of their field."""
    hints = get_type_hints(section, include_extras=True)
    return {name: item for name, hint in hints.items() for item in get_args(hint)[1:] if isinstance(item, Assumption)}
