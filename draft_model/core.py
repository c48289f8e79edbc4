"""Parts that all rooms of the package share: the error, atomic files, locks and digests, and the presets.

Files and folders appear whole or not at all; a disk that refuses is a PipelineError.
"""

import contextlib
import fcntl
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from safetensors import SafetensorError

from completion_server.core import files

VOCAB_SIZE = 4096
CONTEXT_TOKENS = 1024
HEAD_DIM = 64
"""Size of the heads of both embedded models: vLLM keeps both in one paged KV cache, which takes heads of one size."""


class PipelineError(click.ClickException):
    """An expected failure with a message for the user; the command line prints it and ends with status 1."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old or the new content; PipelineError when the disk refuses."""
    with _plain_refusals(path):
        files.write_atomically(path, data)


def check_replaceable(path: Path, mark: str) -> None:
    """Raise PipelineError unless `path` is missing, an empty folder, or a folder with a file named `mark`.

    An empty `mark` allows no folder that holds anything.
    """
    is_taken = path.exists() and not (path.is_dir() and not any(path.iterdir()))
    if is_taken and not (mark and (path / mark).is_file()):
        why = f"holds something else: it has no {mark}" if mark else "exists already"
        raise PipelineError(f"{path} {why}; choose another folder or remove it")


@contextlib.contextmanager
def replacing_folder(path: Path, mark: str) -> Iterator[Path]:
    """Yield a new folder to fill; on success it takes the place of `path`, on failure it is removed.

    Raises PipelineError as `check_replaceable` does, and when the disk refuses; `path` is then unchanged.
    """
    path = path.resolve()
    check_replaceable(path, mark)
    with _plain_refusals(path), files.replacing_folder(path) as folder:
        yield folder


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file `path`; the lock ends with this process at the latest.

    Raises PipelineError, which names `what`, if another process holds the lock or the disk refuses.
    """
    with contextlib.ExitStack() as stack:
        with _plain_refusals(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(path.open("wb"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PipelineError(f"another process is writing {what}") from error
        yield


@contextlib.contextmanager
def _plain_refusals(path: Path) -> Iterator[None]:
    """Turn the disk's refusal to write `path` into a PipelineError; tokenizers raises a bare Exception for it."""
    try:
        yield
    except Exception as error:
        if not (isinstance(error, OSError | SafetensorError) or "(os error" in str(error)):
            raise
        reason = getattr(error, "strerror", None) or error
        raise PipelineError(f"cannot write {path}: {reason}; nothing was changed") from error


def file_digest(path: Path) -> str:
    """Return a short digest of a file's content; PipelineError when it can't be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError as error:
        raise PipelineError(f"cannot read {path}: {error.strerror}") from error


def weights_digest(folder: Path) -> str:
    """Return a short digest of a model folder's weights; PipelineError when it has none that can be read."""
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise PipelineError(f"{folder} is not a model folder: it has no *.safetensors")
    return hashlib.sha256("".join(map(file_digest, weights)).encode()).hexdigest()[:16]


def render(template: str, **values: Any) -> str:  # noqa: ANN401
    """Fill one of the Markdown templates of this package."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("draft_model"), undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    return environment.get_template(template).render(percent="{:.1%}".format, **values)


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

    def flops_per_token(self, row_tokens: float) -> float:
        """Operations that training takes per token, in rows of `row_tokens`.

        Counted as in "PaLM" (Chowdhery et al., 2022), appendix B: six operations a parameter and token for forward and
        backward, and the attention scores on top, halved because they are causal. Recomputation would not count.
        """
        dense = self.num_matrix_parameters + self.vocab_size * self.hidden_size
        attention = self.num_layers * self.num_heads * self.head_dim * row_tokens
        return 6.0 * dense + 6.0 * attention


@dataclass(frozen=True)
class Preset:
    """A named shape, its training budget and its rates. A step has `batch_tokens` over all processes."""

    name: str
    shape: ModelShape
    num_tokens: int
    batch_tokens: int = 8_192
    muon_lr: float = 0.02
    adam_lr: float = 0.004
    weight_decay: float = 0.01
    warmup_steps: int = 40
    decay_from: float = 0.45
    """The share of the steps after which both rates fall, linearly to zero."""
    seed: int = 20

    @property
    def num_steps(self) -> int:
        """Steps of the whole budget."""
        return -(-self.num_tokens // self.batch_tokens)


PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("embedded-target", ModelShape(8, 256, 704, 4, 4), num_tokens=42_000_000),
        # As wide as its target, so that it can start with two of the target's layers; its step takes as long as one of
        # a narrower draft would, nearly all of it being spent around the matrices.
        Preset("embedded-draft", ModelShape(2, 256, 704, 4, 4), num_tokens=30_000_000),
        # The mission's draft: 12 layers, 16 heads of 128, for a 13B target with a vocabulary of 32,016. Few layers make
        # a fast step, so the parameters are in the width of the feed-forward. Four KV heads instead of sixteen: a token
        # then takes 24 KB of cache instead of 98, of which 12,000 sessions need many, at a small cost in loss.
        Preset(
            "draft-1b",
            ModelShape(12, 2048, 11_008, 16, 4, head_dim=128, vocab_size=32_016, context_tokens=4096),
            num_tokens=50_000_000_000, batch_tokens=1 << 20, muon_lr=0.01, adam_lr=0.001, warmup_steps=500,
            decay_from=0.6,
        ),
    )
}  # fmt: skip


def find_preset(name: str) -> Preset:
    """The preset called `name`; PipelineError lists the known ones when there is none."""
    try:
        return PRESETS[name]
    except KeyError:
        raise PipelineError(f"no preset {name!r}; there are: {', '.join(sorted(PRESETS))}") from None
