"""Model folders: the network, loading, exporting, and serving them in vLLM.

The network is transformers' own Llama, so the trained network is the one that is exported and served. Knows shapes and
folders; must not know corpora or training.
"""

import json
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    CompressedTensorsConfig,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils.logging import disable_progress_bar

from completion_server.engine.vllm import offline
from draft_model.core import ModelShape, PipelineError, replacing_folder

INIT_STD = 0.02
ROPE_THETA = 10_000.0
IN_EVERY_LAYER = ("attention_bias", "hidden_act", "mlp_bias", "rms_norm_eps", "rope_parameters", "tie_word_embeddings")
"""Fields that must be equal in two Llama configurations, besides sizes, for a layer of one to work in the other."""
CONFIG = "config.json"
"""The file that marks a model folder."""


def make_config(shape: ModelShape, end_token_id: int = 0) -> LlamaConfig:
    """The Hugging Face configuration of a shape; the end token is the begin token too."""
    return LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.context_tokens,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        initializer_range=INIT_STD,
        bos_token_id=end_token_id,
        eos_token_id=end_token_id,
        pad_token_id=None,
        use_cache=True,
    )


def make_model(shape: ModelShape, seed: int) -> LlamaForCausalLM:
    """A freshly initialised model in float32; the projections back into the residual stream start at zero."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(make_config(shape))  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            torch.nn.init.zeros_(parameter)
    return model


def make_pruned(shape: ModelShape, source: LlamaForCausalLM) -> LlamaForCausalLM:
    """A model of `shape` from a deeper one: its embedding, its last norm, and layers spread evenly over its depth.

    Such a draft has its target's features from the first step. Raises PipelineError when the two models differ in more
    than their depth.
    """
    sizes = _shape_of(source)
    widths = replace(sizes, num_layers=shape.num_layers, context_tokens=shape.context_tokens)
    config = make_config(shape)
    had = vars(widths) | {name: getattr(source.config, name) for name in IN_EVERY_LAYER}
    asked = vars(shape) | {name: getattr(config, name) for name in IN_EVERY_LAYER}
    differing = [f"{name} {value}, not {asked[name]}" for name, value in had.items() if value != asked[name]]
    if differing:
        differences = "; ".join(differing)
        raise PipelineError(f"a model to start from may differ in its number of layers only; it has {differences}")
    depth = sizes.num_layers
    if depth < shape.num_layers:
        raise PipelineError(f"a model of {depth} layers has no {shape.num_layers} to start from")
    model = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    model.model.embed_tokens.load_state_dict(source.model.embed_tokens.state_dict())
    model.model.norm.load_state_dict(source.model.norm.state_dict())
    for layer, number in zip(model.model.layers, spread_layers(depth, shape.num_layers), strict=True):
        state = source.model.layers[number].state_dict()  # A layer that was INT8 still has its scales in it.
        layer.load_state_dict({name: state[name] for name in layer.state_dict()})
    return model


def spread_layers(depth: int, num_layers: int) -> list[int]:
    """The layers to take of `depth`: the first, the last, and others at even distances; a single one is the last."""
    if num_layers == 1:
        return [depth - 1]
    return [round(number * (depth - 1) / (num_layers - 1)) for number in range(num_layers)]


def _shape_of(model: LlamaForCausalLM) -> ModelShape:
    config = model.config
    return ModelShape(
        config.num_hidden_layers, config.hidden_size, config.intermediate_size, config.num_attention_heads,
        int(config.num_key_value_heads or 0), int(config.head_dim or 0), config.vocab_size,
        config.max_position_embeddings,
    )  # fmt: skip


def read_config(folder: Path) -> dict[str, Any]:
    """The `config.json` of a model folder; PipelineError when it can't be read."""
    path = folder / "config.json"
    if not path.is_file():
        raise PipelineError(f"{folder} is not a model folder: it has no config.json")
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PipelineError(f"{path} can't be read: {error}") from error
    return config


def check_goes_with(draft: Path, target: Path) -> None:
    """Raise PipelineError when vLLM refuses to serve a draft with a target because their embeddings differ in size."""
    ours, theirs = (read_config(folder).get("vocab_size") for folder in (draft, target))
    if ours != theirs:
        raise PipelineError(
            f"{draft} has a vocab_size of {ours}, {target} one of {theirs}: vLLM serves the two together only with the "
            "same; train the draft with --teacher or --start-from"
        )


def load_model(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A model folder of any family in evaluation mode, INT8 dequantised; PipelineError when it can't be loaded."""
    quantised = (read_config(folder).get("quantization_config") or {}).get("quant_method")
    disable_progress_bar()  # type: ignore[no-untyped-call]
    with warnings.catch_warnings(), redirect_stderr(StringIO()):  # INT8 weights draw progress bars that have no switch.
        warnings.simplefilter("ignore")  # INT8 imports deprecated parts of torch.
        # Dequantised now, not at the first pass: until then the layers are int8, and no draft can start from them.
        how = CompressedTensorsConfig(dequantize=True) if quantised == "compressed-tensors" else None
        try:
            model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
                str(folder), dtype=dtype, **({"quantization_config": how} if how else {})
            )
        except (OSError, ValueError) as error:  # A family that transformers does not know, or weights that are missing.
            raise PipelineError(f"{folder} can't be loaded: {error}") from error
    model.requires_grad_(False)
    return model


@torch.inference_mode()
def write_tokens(
    model: PreTrainedModel, prompt: Sequence[int], max_tokens: int, temperature: float = 0.0, *,
    stops: Sequence[int] = (),
) -> list[int]:  # fmt: skip
    """A model's completion of a prompt, up to and with the first of the tokens `stops`, if there are any."""
    ids = torch.tensor([list(prompt)])
    sampling: dict[str, Any] = (
        {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    )
    generator: Any = model
    # A model's own defaults, such as a penalty for repetition, are not the engine's.
    generator.generation_config = GenerationConfig(eos_token_id=list(stops) or None)  # type: ignore[no-untyped-call]
    output: Tensor = generator.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, pad_token_id=0, **sampling
    )
    written: list[int] = output[0, len(prompt) :].tolist()
    return written


def export_model(
    weights: Mapping[str, Tensor], shape: ModelShape, tokenizer: PreTrainedTokenizerFast, card: str, out: Path,
    more: Mapping[str, str] | None = None,
) -> None:  # fmt: skip
    """Write the model folder `out` whole or not at all, replacing an old one; `more` has other files by their names.

    Raises PipelineError when the disk refuses.
    """
    end = tokenizer.convert_tokens_to_ids(str(tokenizer.eos_token))
    model = LlamaForCausalLM(make_config(shape, int(end)))  # type: ignore[no-untyped-call, arg-type]
    model.load_state_dict(dict(weights))
    model.to(torch.bfloat16)  # type: ignore[arg-type]
    model.generation_config.bos_token_id = model.generation_config.eos_token_id = end
    with replacing_folder(out, CONFIG) as folder:
        model.save_pretrained(str(folder))
        tokenizer.save_pretrained(str(folder))
        for name, text in {"README.md": card, **(more or {})}.items():
            (folder / name).write_text(text, encoding="utf-8")
        for path in folder.iterdir():
            path.chmod(0o644)


def rewrite_card(model: Path, card: str, out: Path) -> None:
    """Copy a model folder to `out` with another card, whole or not at all; PipelineError when the disk refuses."""
    with replacing_folder(out, CONFIG) as folder:
        shutil.copytree(model, folder, dirs_exist_ok=True)
        (folder / "README.md").write_text(card, encoding="utf-8")


@dataclass(frozen=True)
class AcceptanceCounts:
    """Counts of drafts of at most K tokens: all drafts, and those with their first, second, ... token accepted."""

    num_drafts: int
    accepted_at: tuple[int, ...]

    def __add__(self, other: "AcceptanceCounts") -> "AcceptanceCounts":
        """Add the counts of drafts with the same K."""
        pairs = zip(self.accepted_at, other.accepted_at, strict=True)
        return AcceptanceCounts(self.num_drafts + other.num_drafts, tuple(left + right for left, right in pairs))

    def __sub__(self, earlier: "AcceptanceCounts") -> "AcceptanceCounts":
        """The counts since an earlier moment."""
        return self + AcceptanceCounts(-earlier.num_drafts, tuple(-count for count in earlier.accepted_at))

    @property
    def num_speculative_tokens(self) -> int:
        """K."""
        return len(self.accepted_at)

    @property
    def per_token(self) -> float:
        """Accepted tokens over drafted tokens."""
        drafted = self.num_drafts * self.num_speculative_tokens
        return sum(self.accepted_at) / drafted if drafted else 0.0

    @property
    def per_position(self) -> tuple[float, ...]:
        """The share of drafts that were accepted up to each position."""
        return tuple(count / self.num_drafts if self.num_drafts else 0.0 for count in self.accepted_at)

    @property
    def mean_length(self) -> float:
        """Mean tokens of a step, including the target's own."""
        return 1.0 + (sum(self.accepted_at) / self.num_drafts if self.num_drafts else 0.0)

    @property
    def conditional(self) -> float:
        """The probability that a drafted token is accepted given that those before it are."""
        tried = self.num_drafts + sum(self.accepted_at[:-1])
        return sum(self.accepted_at) / tried if tried else 0.0


@dataclass(frozen=True)
class GeneratedTokens:
    """The tokens of a completion without its end token; `stop` is the end token, None after a cut-off."""

    ids: list[int]
    stop: int | None = None


class OfflineEngine:
    """A running vLLM."""

    def __init__(self, llm: Any) -> None:  # noqa: ANN401 - vLLM's own type, imported late
        self._llm = llm
        self.took_s = 0.0
        """Duration of the last call of `complete`."""
        self.context_tokens: int = llm.llm_engine.model_config.max_model_len
        """Limit of a prompt and its completion together."""

    def complete(
        self, prompts: Sequence[Sequence[int]], *, max_tokens: int, temperature: float = 0.0, seed: int = 0,
        ignore_end: bool = False, stops: Sequence[int] = (),
    ) -> list[GeneratedTokens]:  # fmt: skip
        """Complete every prompt, up to the end token (not with `ignore_end`) or one of the tokens `stops`."""
        from vllm import SamplingParams

        params = [
            SamplingParams(
                max_tokens=max_tokens,
                temperature=temperature,
                seed=seed + number if temperature else None,
                ignore_eos=ignore_end,
                stop_token_ids=list(stops),
            )
            for number in range(len(prompts))
        ]
        begun = time.perf_counter()
        requests = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        outputs = self._llm.generate(requests, params, use_tqdm=False)
        self.took_s = time.perf_counter() - begun
        return [_completion(output.outputs[0]) for output in outputs]

    def speculation(self, num_speculative_tokens: int) -> AcceptanceCounts:
        """The counters of speculation, for drafts of this length."""
        drafts, accepted = 0, [0] * num_speculative_tokens
        for metric in self._llm.get_metrics():
            if metric.name == "vllm:spec_decode_num_drafts":
                drafts += metric.value
            elif metric.name == "vllm:spec_decode_num_accepted_tokens_per_pos":
                accepted = [old + new for old, new in zip(accepted, metric.values, strict=True)]
        return AcceptanceCounts(drafts, tuple(accepted))


def _completion(written: Any) -> GeneratedTokens:  # noqa: ANN401 - vLLM's own type, imported late
    ids = list(written.token_ids)
    return GeneratedTokens(ids[:-1], ids[-1]) if written.finish_reason == "stop" else GeneratedTokens(ids)


def refuse_options(options: Mapping[str, Any], *fixed: str) -> None:
    """Raise PipelineError when the chosen `options` of vLLM have one of the `fixed` settings."""
    try:
        offline.refuse_options(options, *fixed)
    except offline.OfflineEngineError as error:
        raise PipelineError(str(error)) from error


@contextmanager
def open_engine(
    target: Path, draft: Path | None = None, *, num_speculative_tokens: int = 0, max_num_seqs: int | None = None,
    options: Mapping[str, Any] | None = None, speculation_graphs: Literal["full", "piecewise"] | None = None,
) -> Iterator[OfflineEngine]:  # fmt: skip
    """Start vLLM on a target, with a draft when one is given; stop it at the end.

    `options` are vLLM's own settings, such as `tensor_parallel_size`; `speculation_graphs` runs a model alone with the
    graphs that it has in speculation. Raises PipelineError when it does not start, dies later, or `options` has a
    setting that is fixed here.
    """
    fixed: dict[str, Any] = {"speculative_config": None, "disable_log_stats": False}
    if max_num_seqs is not None:
        fixed["max_num_seqs"] = max_num_seqs
    if draft is not None and num_speculative_tokens:
        fixed["speculative_config"] = {
            "method": "draft_model", "model": str(draft), "num_speculative_tokens": num_speculative_tokens,
        }  # fmt: skip
    try:
        with offline.offline_engine(target, fixed, options, speculation_graphs=speculation_graphs) as llm:
            yield OfflineEngine(llm)
    except offline.OfflineEngineError as error:
        raise PipelineError(str(error)) from error
