"""What is measured, and how large it is: the full sizes for a GPU, and tiny ones to try the program on any machine."""

from dataclasses import dataclass

from draft_model.core.presets import PRESETS, ModelShape

CODE_LLAMA_13B = ModelShape(40, 5120, 13_824, 40, 40, head_dim=128, vocab_size=32_016, context_tokens=4096)
SKIPPED_STEPS = 3
"""Training steps that are left out of the figures: the first ones compile kernels and fill the allocator."""
PROMPT_SHARE = 8
"""A prompt takes an eighth of the context: 64 sequences of the target then fill 34 GB of KV cache, 0.82 MB a token."""


@dataclass(frozen=True)
class Sizes:
    """The preset to train and for how long, the target's shape, and the batches to decode."""

    preset: str
    target: ModelShape
    train_minutes: float
    train_steps: int | None
    batch_tokens: int
    block_tokens: int
    batch_sizes: tuple[int, ...]
    timed_tokens: int

    @property
    def draft(self) -> ModelShape:
        """The draft's shape."""
        return PRESETS[self.preset].shape


FULL = Sizes("draft-1b", CODE_LLAMA_13B, 3.0, None, 1 << 18, 1 << 14, (1, 8, 32, 64), 128)
TINY = Sizes(
    "embedded-draft", ModelShape(2, 256, 512, 4, 4, vocab_size=512, context_tokens=256), 0.0, SKIPPED_STEPS + 2, 2048,
    1024, (1, 2), 8,
)  # fmt: skip
