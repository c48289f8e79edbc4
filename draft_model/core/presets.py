"""The shapes of the models and their training settings. New presets belong in `PRESETS`."""

from dataclasses import dataclass, field

from draft_model.core.errors import PipelineError

VOCAB_SIZE = 4096
CONTEXT_TOKENS = 1024
HEAD_DIM = 64
"""Size of the heads of both embedded models: vLLM keeps both in one paged KV cache, which takes heads of one size."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a Llama-style decoder with tied embeddings."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int = HEAD_DIM
    vocab_size: int = VOCAB_SIZE
    context_tokens: int = CONTEXT_TOKENS

    @property
    def num_matrix_parameters(self) -> int:
        """Parameters in the matrices inside the layers."""
        attention = self.hidden_size * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        return self.num_layers * (attention + 3 * self.hidden_size * self.intermediate_size)

    @property
    def num_parameters(self) -> int:
        """All parameters: matrices, norms, and the embedding, which is the output head too."""
        norms = (2 * self.num_layers + 1) * self.hidden_size
        return self.num_matrix_parameters + norms + self.vocab_size * self.hidden_size


@dataclass(frozen=True)
class TrainSettings:
    """Budget and learning rates. A step has `batch_tokens` over all processes; `minutes` is the default budget."""

    minutes: float
    batch_tokens: int = 8_192
    muon_lr: float = 0.02
    adam_lr: float = 0.004
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    warmup_steps: int = 40
    decay_from: float = 0.45
    seed: int = 20


@dataclass(frozen=True)
class Preset:
    """A named shape with its training settings."""

    name: str
    shape: ModelShape
    train: TrainSettings = field(default_factory=lambda: TrainSettings(minutes=10.0))


PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("embedded-target", ModelShape(8, 256, 704, 4, 4), TrainSettings(minutes=300.0)),
        # As wide as its target, so that it can start with two of the target's layers; its step takes as long as one of
        # a narrower draft would, nearly all of it being spent around the matrices.
        Preset("embedded-draft", ModelShape(2, 256, 704, 4, 4), TrainSettings(minutes=60.0)),
        # The mission's draft: 12 layers, 16 heads of 128, for a 13B target with a vocabulary of 32,016. Few layers make
        # a fast step, so the parameters are in the width of the feed-forward. Four KV heads instead of sixteen: a token
        # then takes 24 KB of cache instead of 98, of which 12,000 sessions need many, at a small cost in loss.
        Preset(
            "draft-1b",
            ModelShape(12, 2048, 11_008, 16, 4, head_dim=128, vocab_size=32_016, context_tokens=4096),
            TrainSettings(
                minutes=3 * 24 * 60.0, batch_tokens=1 << 20, muon_lr=0.01, adam_lr=0.001, warmup_steps=500,
                decay_from=0.6,
            ),
        ),
    )
}  # fmt: skip


def find_preset(name: str) -> Preset:
    """The preset called `name`; PipelineError lists the known ones when there is none."""
    try:
        return PRESETS[name]
    except KeyError:
        raise PipelineError(f"no preset {name!r}; there are: {', '.join(sorted(PRESETS))}") from None
