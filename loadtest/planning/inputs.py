"""The inputs of a plan: what each one means, its range and its default. docs/capacity.md has sources and estimates.

The command makes an option of each field, whose text is its help.
"""

import math
from dataclasses import dataclass
from typing import Annotated

from completion_server.core.checks import Above, Between, require_bounds

MAX_SESSIONS = 10_000_000


@dataclass(frozen=True, slots=True)
class Region:
    """A region and its share of the sessions."""

    name: str
    share: float


# fmt: off
@dataclass(frozen=True, slots=True)
class Inputs:
    """All of them. The defaults are of a Code Llama of 13 billion parameters in INT8 with a draft model on an A100."""

    sessions: Annotated[int, Between(1, MAX_SESSIONS)]
    """Editors that are open at the busiest time."""
    regions: tuple[Region, ...] = tuple(Region(name, 1 / 3) for name in ("us-east", "us-west", "eu-west"))
    survive: Annotated[int, "Answer in time without so many regions."] = 0
    surge: Annotated[int, Between(0, 1000), "Servers more in each region, for a rollout."] = 0
    gpus_per_region: Annotated[int | None, "Check this fleet instead of sizing one."] = None
    server_per_s: Annotated[float | None, Above(0, 1e6), "Of a measured server, instead of its model."] = None

    # How people type, at the busiest time.
    requests_per_session_hour: Annotated[float | None, Above(0, 100_000), "Counted, not from the typing model."] = None
    typing_share: Annotated[float, Above(0, 1), "Share of the open editors that somebody types in."] = 0.5
    away_share: Annotated[float, Between(0, 0.999), "Share of that time in which the user reads or is away."] = 0.87
    debounce_ms: Annotated[float, Between(0, 5000), "An editor asks when no key came for this long."] = 50.0
    prefetch_share: Annotated[float, Between(0, 1), "Prefetches, as a share of the keys. They are not shown."] = 0.0
    cached_share: Annotated[float, Between(0, 0.99), "Requests that a completion cache answers, without a GPU."] = 0.0

    # What a completion is, and when it is in time.
    completion_tokens: Annotated[float, Above(0, 10_000), "Tokens of a completion that nobody cuts short."] = 20.0
    tokens_per_s: Annotated[float, Above(0, 100_000), "Tokens a second of a request while all slots are taken."] = 165.0
    first_token_ms: Annotated[float, Above(0, 10_000), "From the start of a request's work to its first text."] = 40.0
    network_ms: Annotated[float, Between(0, 10_000), "Between editor and server, there and back."] = 15.0
    within_ms: Annotated[float, Above(0, 60_000), "A completion is in time if its first text comes so soon."] = 200.0
    in_time: Annotated[float, Between(0.5, 0.999), "Share of the completions that must be in time."] = 0.95
    readable_ms: Annotated[float, Between(0, 10_000), "Shown is what stands so long before the next key."] = 200.0
    text_share: Annotated[float, Above(0, 1), "Share of the answers that have text."] = 0.83
    shown_share: Annotated[float | None, Above(0, 1), "Of the requests: counted, instead of the two above."] = None

    # A server: one GPU, or one group of GPUs that share a model. A measured one needs none of these.
    slots: Annotated[int, Between(1, 4096), "Requests that a server computes at once."] = 32
    computed_tokens_per_s: Annotated[float, Above(0, 1e9), "At most: new prompt tokens, tokens to verify."] = 12_000.0
    max_busy: Annotated[float, Above(0, 1), "Share of --computed-tokens-per-s to use at the busiest time."] = 0.8
    new_prompt_tokens: Annotated[float, Between(0, 1_000_000), "Computed if a request's document is cached."] = 40.0
    draft_tokens: Annotated[int, Between(0, 32), "Draft tokens of a step (K); 0 without speculation."] = 5
    draft_acceptance: Annotated[float, Between(0, 0.99), "Of a draft token, after those before it."] = 0.82
    front_end_per_s: Annotated[float, Above(0, 1e6), "Requests a second that the server's own process handles."] = 900.0
    gpus_per_server: Annotated[int, Between(1, 64), "GPUs of one server, over which its model is divided."] = 1
    gpu_memory_gb: Annotated[float, Above(0, 10_000), "Memory of a GPU, in GB of 10^9 bytes, as below."] = 80.0
    gpu_memory_share: Annotated[float, Above(0, 1), "Share of it for the engine: gpu_memory_utilization."] = 0.92
    weights_gb: Annotated[float, Above(0, 100_000), "Weights of a server's models; --model calculates them."] = 15.35
    kv_bytes_per_token: Annotated[int, Between(1, 10**9), "KV cache of a token; --model calculates it."] = 843_776
    reserved_gb: Annotated[float, Between(0, 10_000), "Activations and CUDA graphs of a GPU."] = 3.0
    document_tokens: Annotated[float, Above(0, 10_000_000), "Prompt tokens of a document."] = 1500.0

    gpu_usd_hour: Annotated[float, Above(0, 10_000), "Price of a GPU for an hour, with its part of the machine."] = 3.0
    mean_load: Annotated[float, Above(0, 1), "Over all hours that are paid for, of the busiest time's load."] = 0.32
    # fmt: on

    def __post_init__(self) -> None:
        """Check the bounds, and what two inputs say together."""
        require_bounds(self)
        least = self.network_ms + self.first_token_ms
        given, total = self.gpus_per_region, sum(each.share for each in self.regions)
        last = len(self.regions) - 1
        checks = (
            (self.within_ms > least, f"within_ms: must be above network_ms + first_token_ms ({least:g})"),
            (all(each.share > 0 for each in self.regions), "region: shares must be above 0"),
            (abs(total - 1) <= 1e-6, f"region: shares must come to 1, got {total:g}"),  # noqa: PLR2004 - rounding
            (len({each.name for each in self.regions}) > last, "region: names must differ"),
            (0 <= self.survive <= last, f"survive: must be from 0 to {last}, one less than there are regions"),
            (
                given is None or (given >= 1 and given % self.gpus_per_server == 0),
                f"gpus_per_region: must be a multiple of gpus_per_server ({self.gpus_per_server}) and at least 1",
            ),
        )
        for is_met, limit in checks:
            if not is_met:
                raise ValueError(limit)

    @property
    def first_text_s(self) -> float:
        """From the request to its first text in the editor, without a queue."""
        return (self.network_ms + self.first_token_ms) / 1000

    @property
    def service_s(self) -> float:
        """How long an answer that nobody cuts short holds a slot."""
        return self.first_token_ms / 1000 + self.completion_tokens / self.tokens_per_s

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a step gives a request on average: the accepted drafts and one more."""
        return sum(self.draft_acceptance**number for number in range(self.draft_tokens + 1))

    def lost_share(self, region: Region) -> float:
        """Return the share of the sessions in the worst loss of other regions: of one, or as many as `survive`."""
        others = sorted((each.share for each in self.regions if each is not region), reverse=True)
        return math.fsum(others[: max(1, self.survive)])
