"""How to run an engine. Says nothing about which rooms use it."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from completion_server.core.checks import Above, Between, require_bounds

CacheScope = Literal["user", "tenant"]


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The `[engine]` section."""

    kind: Literal["vllm", "scripted"] = "vllm"
    """The real engine, or a deterministic double with a service-time model for capacity runs."""
    scripted_times: Literal[
        "instant", "small_model_on_two_cores", "large_model_on_a_gpu", "large_model_prefilled_apart"
    ] = "small_model_on_two_cores"
    """How long the scripted engine takes: 45 ms for a prompt and 8 ms for a step with a large model."""
    scripted_acceptance: Annotated[float, Between(0, 1)] = 0.7
    """The chance of each draft token of the scripted engine, given that those before it were accepted."""
    model: str = ""
    """A Hugging Face model id, or the path of a model folder. A path may be relative to the configuration file."""
    revision: str | None = None
    """Branch, tag or commit of a model on a hub."""
    dtype: str = "auto"
    """"auto" takes what the model's own configuration says; INT8 exports say so themselves."""
    draft_model: str = ""
    """The draft for speculative decoding; "" switches speculation off."""
    num_speculative_tokens: Annotated[int, Between(0, 1024)] = 4
    """Draft tokens for each step (K) at most; 0 switches speculation off."""
    max_model_len: Annotated[int | None, Between(1, 10_000_000)] = None
    """Prompt and completion together, in tokens; None takes the model's own limit."""
    max_num_seqs: Annotated[int, Between(1, 100_000)] = 64
    """Generations that one step may hold."""
    tensor_parallel_size: Annotated[int, Between(1, 1024)] = 1
    """GPUs that share one model."""
    enforce_eager: bool | None = None
    """Whether to skip compilation and CUDA graphs; None skips them on a CPU only, where they cost more start-up
    time than a small model gives back."""
    nice: Annotated[int | None, Between(0, 19)] = None
    """How much less the engine's processes count than the server where they want the same cores, 0 to 19; None is 5
    where it computes on a CPU, since it is never idle there and the server would wait for its turn, and 0 elsewhere."""
    cache_scope: CacheScope = "user"
    """Whose prompts share entries of the prefix cache: one user's, or all users' of a tenant. A tenant's users can find
    out by the cached tokens of their answers which text the others have open."""
    cpu_kv_cache_gib: Annotated[int, Between(1, 65_536)] = 1
    """Memory for the KV cache where the engine runs on a CPU."""
    trust_remote_code: bool = False
    """Whether to run Python code that a model on a hub brings along."""
    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    """What the engine itself logs."""
    start_timeout_s: Annotated[float, Above(0, 86_400)] = 900.0
    """Loading the model may take this long. A load that takes longer is stopped."""
    hang_timeout_s: Annotated[float, Above(0, 3600)] = 10.0
    """An engine that owes an output and gives none for this long hangs: it is stopped and started again. It gets more
    time if its recent steps took long (3 times the longest one), and while its processes compute on a CPU."""
    step_timeout_s: Annotated[float, Above(0, 3600)] = 60.0
    """The longest time that one step may take. An engine that gives no output for this long hangs even if its processes
    compute. Each step of the warm-up may take as long."""
    heartbeat_s: Annotated[float, Between(0, 3600)] = 30.0
    """An idle engine is asked for one token this often, so that a hang shows before a user meets it; 0 never asks."""
    restart_backoff_min_s: Annotated[float, Above(0, 3600)] = 0.5
    """A failed engine starts again after this long; each further failure doubles it,"""
    restart_backoff_max_s: Annotated[float, Above(0, 3600)] = 30.0
    """up to this,"""
    restart_backoff_reset_s: Annotated[float, Between(0, 86_400)] = 60.0
    """until an engine has served for this long."""
    quarantine_s: Annotated[float, Between(0, 86_400)] = 300.0
    """A prompt that the engine was computing at two failures is refused for this long, with FAILED_PRECONDITION; each
    further failure doubles it. 0 refuses none."""
    warm_up: bool = True
    """Whether to run real requests through prefill, decode and speculation before the first user's."""
    vllm: dict[str, Any] = field(default_factory=dict)
    """Any other argument of vLLM's own AsyncEngineArgs, under its own name."""

    def __post_init__(self) -> None:
        """Refuse values that can't work."""
        require_bounds(self)
        if self.step_timeout_s < self.hang_timeout_s:
            limit, given = self.hang_timeout_s, self.step_timeout_s
            msg = f"step_timeout_s: must be at least hang_timeout_s ({limit:g}), got {given:g}"
            raise ValueError(msg)
        if self.restart_backoff_min_s > self.restart_backoff_max_s:
            limit, given = self.restart_backoff_max_s, self.restart_backoff_min_s
            msg = f"restart_backoff_min_s: must be at most restart_backoff_max_s ({limit:g}), got {given:g}"
            raise ValueError(msg)

    @property
    def max_draft_tokens(self) -> int:
        """The ceiling of K that these settings ask for."""
        own = self.vllm.get("speculative_config")
        if isinstance(own, dict):
            return int(own.get("num_speculative_tokens") or 0)
        return self.num_speculative_tokens if self.draft_model else 0


@dataclass(frozen=True, slots=True)
class SpeculationSettings:
    """The `[speculation]` section."""

    mode: Literal["fixed", "schedule", "auto"] = "fixed"
    """How many draft tokens a step gets, up to engine.num_speculative_tokens: always that many, as `schedule` says, or
    what pays by the server's own measure, which begins with `schedule` where there is one. `completion-server
    speculation set` changes it on a running server."""
    schedule: tuple[tuple[int, ...], ...] = ()
    """Rows of [first, last, K]: with first to last generations in a step, each gets K draft tokens, 0 for none. From
    batch size 1 on without gaps; the last row holds for larger ones, too."""

    def __post_init__(self) -> None:
        """Refuse values that can't work."""
        if self.mode == "schedule" and not self.schedule:
            msg = 'schedule: must be set where mode is "schedule"'
            raise ValueError(msg)
        if self.mode == "fixed" and self.schedule:
            msg = 'mode: must be "schedule" or "auto" where a schedule is set'
            raise ValueError(msg)
