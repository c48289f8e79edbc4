"""Calculates the memory that a model needs from its config.json: its weights, and the KV cache of a token."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

KvType = Literal["auto", "fp8"]
"""vLLM's kv_cache_dtype: "auto" takes the model's own type."""

_BYTES = 2
"""Of a number that is not quantised. vLLM loads float32, too, in a type of two bytes."""
_UNGATED = frozenset({"starcoder2"})
"""Model types whose feed-forward has two matrices; that of all others has three."""
_NOT_CALCULATED = ("num_experts", "num_local_experts", "n_routed_experts", "kv_lora_rank")

Count = Annotated[int, Field(ge=1, le=10_000_000)]


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """Memory of a model, on all GPUs of a server together."""

    weights_bytes: int
    kv_bytes_per_token: int


class _Config(BaseModel):
    """The keys of a decoder's config.json that count here."""

    model_config = ConfigDict(extra="allow", frozen=True)

    model_type: str = ""
    num_hidden_layers: Count
    hidden_size: Count
    intermediate_size: Count
    num_attention_heads: Count
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    vocab_size: Count
    tie_word_embeddings: bool = False
    dtype: Literal["float16", "bfloat16", "float32"] = Field(
        "bfloat16", validation_alias=AliasChoices("dtype", "torch_dtype")
    )
    quantization_config: dict[str, Any] | None = None


def read_model(path: Path, kv_type: KvType = "auto") -> ModelMemory:
    """Return the memory of the model of a config.json, or of the folder that holds one.

    Norms, biases and the scales of quantised matrices are left out: less than 1% of the weights, with scales of groups
    of 128 up to 3%.

    Raises ValueError if it is no config.json, or of an architecture that this does not calculate.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        config = _Config.model_validate_json(file.read_bytes())
    except OSError as error:
        raise ValueError(f"{file} can't be read: {error.strerror}") from error
    except ValidationError as error:
        raise ValueError(f"{file} {_first(error)}") from error
    for key in _NOT_CALCULATED:
        if (config.model_extra or {}).get(key):
            raise ValueError(f"{file} {key}: neither experts nor latent attention are calculated")
    heads = config.num_key_value_heads or config.num_attention_heads
    head_dim = config.head_dim or config.hidden_size // config.num_attention_heads
    kv_bytes = 1 if kv_type == "fp8" else _BYTES
    return ModelMemory(
        weights_bytes=round(_weights_bytes(config, file, heads, head_dim)),
        kv_bytes_per_token=2 * config.num_hidden_layers * heads * head_dim * kv_bytes,
    )


def _weights_bytes(config: _Config, file: Path, kv_heads: int, head_dim: int) -> float:
    attention = 2 * config.hidden_size * head_dim * (config.num_attention_heads + kv_heads)
    feed_forward = (2 if config.model_type in _UNGATED else 3) * config.hidden_size * config.intermediate_size
    embeddings = config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    matrix_bytes = _BYTES if config.quantization_config is None else _bits(config.quantization_config, file) / 8
    return config.num_hidden_layers * (attention + feed_forward) * matrix_bytes + embeddings * _BYTES


def _bits(quantization: dict[str, Any], file: Path) -> int:
    """Return the bits of a quantised weight in the forms of compressed-tensors, GPTQ and AWQ, FP8, and bitsandbytes."""
    groups = quantization.get("config_groups")
    found: Any = quantization.get("bits")
    if isinstance(groups, dict):
        found = max(((each.get("weights") or {}).get("num_bits", 0) for each in groups.values()), default=0)
    elif quantization.get("quant_method") == "fp8" or quantization.get("load_in_8bit"):
        found = 8
    elif quantization.get("load_in_4bit"):
        found = 4
    if found not in range(1, 17):
        raise ValueError(f"{file} quantization_config: must state the bits of a weight, got {quantization}")
    return int(found)


def _first(error: ValidationError) -> str:
    fault = error.errors()[0]
    got = "" if fault["type"] in {"missing", "json_invalid"} else f", got {fault['input']!r}"
    return f"{'.'.join(map(str, fault['loc']))}: {fault['msg'].lower()}{got}"
