"""The two shapes that are trained here and the settings that they are trained with.

Later and larger presets belong in `PRESETS`.
"""

from dataclasses import dataclass, field

from draft_model.errors import PipelineError

VOCAB_SIZE = 4096
CONTEXT_TOKENS = 1024
HEAD_DIM = 64
"""Of every head in both models: vLLM keeps them in one paged KV cache, and runs 5 heads with 3 of the same size."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama-style decoder with tied embeddings."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int = HEAD_DIM
    vocab_size: int = VOCAB_SIZE
    context_tokens: int = CONTEXT_TOKENS


@dataclass(frozen=True)
class TrainSettings:
    """How long and how fast to learn: `batch_tokens` tokens make a step, `micro_tokens` of them at a time."""

    minutes: float
    batch_tokens: int = 8_192
    micro_tokens: int = 2_048
    row_tokens: tuple[int, ...] = (CONTEXT_TOKENS, 256, 512, 256)
    muon_lr: float = 0.02
    adam_lr: float = 0.004
    weight_decay: float = 0.01
    warmup_steps: int = 40
    decay_from: float = 0.45
    seed: int = 20


@dataclass(frozen=True)
class Preset:
    """A name, a shape and the settings to train it with."""

    name: str
    shape: Shape
    train: TrainSettings = field(default_factory=lambda: TrainSettings(minutes=10.0))


PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("embedded-target", Shape(5, 320, 864, 5, 5), TrainSettings(minutes=70.0)),
        Preset("embedded-draft", Shape(2, 192, 512, 3, 3), TrainSettings(minutes=9.0)),
    )
}


def find_preset(name: str) -> Preset:
    """The preset called `name`; PipelineError lists the known ones when there is none."""
    try:
        return PRESETS[name]
    except KeyError:
        raise PipelineError(f"no preset {name!r}; there are: {', '.join(sorted(PRESETS))}") from None
