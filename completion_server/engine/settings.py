"""The settings of an engine and of speculation."""

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from completion_server.core.checks import Above, Between, require_bounds
from completion_server.engine.interface import NGRAM

CacheScope = Literal["user", "tenant"]

CPU_BLOCK_SIZE = 32
"""Tokens of a prefix-cache block on a CPU unless engine.vllm.block_size is set; on a GPU vLLM chooses.

It is the smallest that vLLM takes on a CPU: a key recomputes at most one block. vLLM's own default there is 128. `make
bench-prompt` simulates a cache of these blocks.
"""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The `[engine]` section."""

    kind: Literal["vllm", "scripted"] = "vllm"
    """The vLLM engine, or a deterministic one with a service-time model for tests and capacity runs."""
    scripted_times: Literal[
        "instant", "small_model_on_two_cores", "large_model_on_a_gpu", "large_model_prefilled_apart"
    ] = "small_model_on_two_cores"
    """The service times of the scripted engine. A large model takes 45 ms for a prompt and 8 ms for a step."""
    scripted_acceptance: Annotated[float, Between(0, 1)] = 0.7
    """The chance of each draft token of the scripted engine, given that those before it were accepted."""
    model: str = ""
    """A Hugging Face model id, or the path of a model folder. A path may be relative to the configuration file. The
    scripted engine needs only its tokenizer; unset, it takes that of the embedded model."""
    revision: str | None = None
    """The revision of the model. On a hub a branch, tag or commit. A folder's is a digest of its files, which
    `completion-server status` shows: another one is refused at the start. Unset, whatever is found is served."""
    draft_model: str = ""
    """The draft model for speculative decoding. "ngram" needs no model: it drafts what followed the last tokens in the
    user's last answers or earlier in the prompt. "" switches speculation off. Unset, a model that writes next edits has
    "ngram", since most of an edit repeats its prompt, and any other model none."""
    draft_revision: str | None = None
    """The revision of the draft model, as `revision` is that of the model."""
    num_speculative_tokens: Annotated[int, Between(0, 1024)] = 4
    """The largest number of speculative tokens (K) for each step; 0 switches speculation off."""
    max_model_len: Annotated[int | None, Between(1, 10_000_000)] = None
    """Prompt and completion together, in tokens; None takes the model's own limit."""
    max_num_seqs: Annotated[int, Between(1, 100_000)] = 64
    """The largest number of generations in one step."""
    tensor_parallel_size: Annotated[int, Between(1, 1024)] = 1
    """GPUs that share one model."""
    enforce_eager: bool | None = None
    """Whether to skip compilation and CUDA graphs. None compiles, on a CPU only with a C++ compiler and Python.h. The
    first start of a configuration takes longer; vLLM keeps the code in VLLM_CACHE_ROOT for later ones."""
    full_cuda_graphs: bool = False
    """Whether steps with the largest K run as full CUDA graphs although K may change; steps with another K stay
    piecewise. False is vLLM's own choice, piecewise graphs for all of them. Not yet run on a GPU: compare greedy texts
    first, with `make bench-gpu`."""
    nice: Annotated[int | None, Between(0, 19)] = None
    """Niceness of the engine's processes, added to the server's own. None is 5 on a CPU, where the engine would delay
    the server on the same cores, and 0 on a GPU."""
    cache_scope: CacheScope = "user"
    """The callers that share entries of the prefix cache, kept completions and generations: one user, or all users of a
    tenant. A tenant's users can find out from the cached tokens of their answers which text the others have open. A
    name that is not verified counts at its network address only."""
    cpu_kv_cache_gib: Annotated[int, Between(1, 65_536)] = 1
    """Memory for the KV cache on a CPU, in GiB."""
    start_timeout_s: Annotated[float, Above(0, 86_400)] = 900.0
    """Time limit for loading the model. A load that takes longer is stopped."""
    hang_timeout_s: Annotated[float, Above(0, 3600)] = 10.0
    """An engine with open generations and no output for this long hangs: it is stopped and started again. It gets more
    time if its recent steps took long (3 times the longest one), and while its processes compute on a CPU."""
    warm_up: bool = True
    """Whether to run requests through prefill, decode and speculation before the server is ready."""
    vllm: dict[str, Any] = field(default_factory=dict)
    """Any other argument of vLLM's own AsyncEngineArgs, under its own name."""
    max_failed_starts: ClassVar[int] = 5
    """The server ends after so many restarts in a row in which no engine starts, so that what runs it may start it on
    another machine. 0 tries for ever."""
    log_level: ClassVar[str] = "warning"
    """Log level of vLLM, unless VLLM_LOGGING_LEVEL is set."""
    scripted_kv_blocks: ClassVar[int] = 8192
    """Blocks of 16 tokens in the scripted engine's KV cache."""
    min_step_timeout_s: ClassVar[float] = 60.0
    """Smallest value of `step_timeout_s`."""
    heartbeat_s: ClassVar[float] = 30.0
    """Interval of heartbeats: requests for one token, which find a hang of an idle engine. 0 sends none."""
    restart_backoff_min_s: ClassVar[float] = 0.5
    """A failed engine restarts after this long; each further failure doubles it."""
    restart_backoff_max_s: ClassVar[float] = 30.0
    """The longest time before a restart."""
    restart_backoff_reset_s: ClassVar[float] = 60.0
    """An engine that has served for this long resets the time before a restart."""
    quarantine_s: ClassVar[float] = 300.0
    """A prompt that the engine was computing at two failures is refused for this long; each further failure doubles it.
    0 refuses none."""

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        require_bounds(self)
        for key, model in (("model", self.model), ("draft_model", self.draft_model)):
            if "://" in model:
                remedy = "its weights alone can be streamed (vllm.model_weights)" if key == "model" else "copy it"
                raise ValueError(f"{key}: must be the path of a folder or a hub id, got {model}; {remedy}")
        if self.draft_revision and self.draft_model in {"", NGRAM}:
            msg = f"draft_revision: must be unset without a draft model, got {self.draft_revision}"
            raise ValueError(msg)

    @property
    def step_timeout_s(self) -> float:
        """Time limit for one step, also of the warm-up: then an engine hangs even if its processes compute."""
        return max(self.min_step_timeout_s, self.hang_timeout_s)

    @property
    def start_key(self) -> str:
        """Names the models of a start. Starts with the same key take about as long, unless the model is compiled."""
        mode = ", uncompiled" if self.enforce_eager else ""
        return f"{self.kind} {self.model}, draft {self.draft_model or 'none'}, {self.tensor_parallel_size} GPU(s){mode}"

    @property
    def max_num_speculative_tokens(self) -> int:
        """The largest K of these settings."""
        own = self.vllm.get("speculative_config")
        if isinstance(own, dict):
            return int(own.get("num_speculative_tokens") or 0)
        return self.num_speculative_tokens if self.draft_model else 0


@dataclass(frozen=True, slots=True)
class SpeculationSettings:
    """The `[speculation]` section."""

    mode: Literal["fixed", "schedule", "auto"] = "auto"
    """How to choose the number of speculative tokens (K) for each step. "fixed" always takes
    engine.num_speculative_tokens, "schedule" follows `schedule`, and "auto" lets the server choose: it begins with
    `schedule`, or without one with what a trial of up to 20 s at start finds (engine.warm_up). `completion-server
    speculation set` changes it on a running server."""
    schedule: tuple[tuple[int, ...], ...] = ()
    """Rows of [first, last, K]: in a step of first to last generations each gets K draft tokens. Rows begin at batch
    size 1 and leave no gap; the last one also holds for larger batches."""

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        if self.mode == "schedule" and not self.schedule:
            msg = 'schedule: must be set where mode is "schedule"'
            raise ValueError(msg)
        if self.mode == "fixed" and self.schedule:
            msg = 'mode: must be "schedule" or "auto" where a schedule is set'
            raise ValueError(msg)
