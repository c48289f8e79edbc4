"""Training data on disk: shards of blocks of rows, each a pure function of corpus, tokenizer, settings and number.

    data.json  tokenizer/  ids-00000.npy  middle-00000.npy  ids-00001.npy ...

One process computes a block at a time. All rows of a block have the same length; the lengths alternate from block to
block, because attention over short rows costs less. A shard reads one part of the corpus, so its memory does not grow
with the corpus. After an interruption only missing shards are made, and several can be made at the same time.

A seed decides the order in which blocks are read, a different one in each epoch. Every position of the order is
computed directly, so a run resumes in mid-epoch from the number of its step alone.
"""

import io
import json
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from completion_server.prompt.templates import Template
from draft_model.core import PipelineError, file_digest, write_atomically
from draft_model.corpus.store import Corpus, Side
from draft_model.data.fim import load_splits
from draft_model.data.samples import FIM_SHARE, CorpusText, SampleMaker, window_chars
from draft_model.data.tokenizer import (
    load_tokenizer,
    make_encoder,
    read_template,
    template_fingerprint,
    template_record,
)

MANIFEST = "data.json"
TOKENIZER = "tokenizer"
MAX_SHORT_VOCAB = 1 << 16
SLOTS_A_ROUND = 1 << 24
DRAWING = 2
OPEN_SHARDS = 128
"""Shards that are mapped at the same time: each holds two file descriptors, and a process may have 1,024."""


@dataclass(frozen=True)
class DataSettings:
    """How rows are made. Lengths and sizes in tokens."""

    num_tokens: int
    block_tokens: int = 2_048
    row_tokens: tuple[int, ...] = (1024, 256, 512, 256)
    blocks_a_shard: int = 1_024
    fim_share: float = FIM_SHARE
    generated_share: float = 0.0
    seed: int = 20
    # Part of a fingerprint only when set: runs on data of earlier versions, which lack the field, continue.
    snippet_share: float = field(default=0.0, repr=False)
    drawing: int = field(default=DRAWING, repr=False)
    """Version of drawing generated samples: version 1 drew fewer than their share when windows did not fit the row."""

    def __post_init__(self) -> None:
        """Refuse rows that do not divide a block."""
        if any(tokens < 1 or self.block_tokens % tokens for tokens in self.row_tokens):
            raise ValueError("every length of row must divide the block")

    @property
    def num_shards(self) -> int:
        """Shards that hold at least `num_tokens`."""
        return max(1, -(-self.num_tokens // (self.block_tokens * self.blocks_a_shard)))


@dataclass(frozen=True)
class DataManifest:
    """The sources of the shards; equal manifests mean equal shards."""

    settings: DataSettings
    template: Template
    corpus: str
    tokenizer: str
    generated: str
    vocab_size: int

    @property
    def fingerprint(self) -> str:
        """A text that names the data. Its form is fixed: checkpoints are compared by its hash."""
        share, drawing = self.settings.snippet_share, self.settings.drawing
        named = [f" with snippets {share}"] if share else []
        named += [f" drawing {drawing}"] if self.settings.generated_share and drawing > 1 else []
        described = (
            f"DataManifest(settings={self.settings!r}, layout={template_fingerprint(self.template)}, "
            f"corpus={self.corpus!r}, tokenizer={self.tokenizer!r}, generated={self.generated!r}, "
            f"vocab_size={self.vocab_size!r})"
        )
        return described + "".join(named)

    @property
    def record(self) -> dict[str, Any]:
        """The manifest for JSON; the template is called a layout there."""
        fields = asdict(self)
        del fields["template"]
        return {"settings": fields.pop("settings"), "layout": template_record(self.template), **fields}


def shard_paths(folder: Path, number: int) -> tuple[Path, Path]:
    """The files of a shard: token ids, and a bit for each token that marks completions."""
    return folder / f"ids-{number:05d}.npy", folder / f"middle-{number:05d}.npy"


def _missing_shards(folder: Path, settings: DataSettings) -> list[int]:
    numbers = range(settings.num_shards)
    return [number for number in numbers if not all(path.is_file() for path in shard_paths(folder, number))]


def load_manifest(folder: Path) -> DataManifest:
    """The manifest that `build_data` wrote; PipelineError names the command to run when it is missing."""
    path = folder / MANIFEST
    if not path.is_file():
        raise PipelineError(f"no training data in {folder}; make it with `draft-model data --out {folder}`")
    record = json.loads(path.read_text(encoding="utf-8"))
    settings = record.pop("settings")
    settings["row_tokens"] = tuple(settings["row_tokens"])
    settings.setdefault("drawing", 1 if settings["generated_share"] else DRAWING)
    return DataManifest(DataSettings(**settings), read_template(record.pop("layout")), **record)


def save_manifest(manifest: DataManifest, folder: Path) -> None:
    """Write the manifest of a data folder; PipelineError when the disk refuses."""
    write_atomically(folder / MANIFEST, (json.dumps(manifest.record, indent=1) + "\n").encode())


def build_data(
    corpus: Corpus,
    tokenizer: Path,
    template: Template,
    out: Path,
    settings: DataSettings,
    *,
    generated: Path | None = None,
    num_workers: int = 1,
    on_shard: Callable[[int, int], None] = lambda done, total: None,
) -> DataManifest:
    """Make the missing shards of `out`. `on_shard(done, total)` is called after each.

    Raises PipelineError when `out` holds data of other sources, the corpus has no training text, or the disk refuses.
    """
    encoder = make_encoder(load_tokenizer(tokenizer), template)
    if not corpus.parts(Side.TRAIN):
        raise PipelineError(f"the corpus in {corpus.folder} has no training text")
    if generated:
        load_splits(generated)  # Refuses an invalid file before anything is written.
    manifest = DataManifest(
        settings, template, corpus.manifest.digest, file_digest(tokenizer / "tokenizer.json"),
        file_digest(generated) if generated else "", encoder.vocab_size,
    )  # fmt: skip
    _open_folder(out, tokenizer, manifest)
    missing = _missing_shards(out, settings)
    done = settings.num_shards - len(missing)
    write = partial(_write_shard, corpus.folder, out, manifest, generated)
    on_shard(done, settings.num_shards)
    with ExitStack() as stack:
        each: Callable[..., Iterator[None]] = map
        if num_workers > 1:
            each = stack.enter_context(ProcessPoolExecutor(num_workers)).map
        for _ in each(write, missing):
            done += 1
            on_shard(done, settings.num_shards)
    return manifest


def _open_folder(out: Path, tokenizer: Path, manifest: DataManifest) -> None:
    if (out / MANIFEST).is_file():
        records = [one.record for one in (load_manifest(out), manifest)]
        old, new = ({**record.pop("settings"), **record} for record in records)
        others = [f"{name} {old[name]!r}, not {new[name]!r}" for name in new if old[name] != new[name]]
        if others:
            raise PipelineError(
                f"{out} holds data made otherwise ({', '.join(others)}); remove it or choose another --out"
            )
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        shutil.copytree(tokenizer, out / TOKENIZER, dirs_exist_ok=True)
    except OSError as error:
        raise PipelineError(f"cannot write {out}: {error.strerror}") from error
    save_manifest(manifest, out)


def _write_shard(corpus: Path, out: Path, manifest: DataManifest, generated: Path | None, number: int) -> None:
    ids, is_middle = make_shard(Corpus(corpus), out / TOKENIZER, manifest, generated, number)
    for path, array in zip(reversed(shard_paths(out, number)), (is_middle, ids), strict=True):
        buffer = io.BytesIO()
        np.save(buffer, array)
        write_atomically(path, buffer.getvalue())


def make_shard(
    corpus: Corpus, tokenizer: Path, manifest: DataManifest, generated: Path | None, number: int
) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]:
    """Token ids (blocks, block_tokens), and the packed bits of the same shape that mark completions."""
    settings = manifest.settings
    encoder = make_encoder(load_tokenizer(tokenizer), manifest.template)
    parts = corpus.parts(Side.TRAIN)
    documents = [
        (f"{document.repository}/{document.path}", document.text)
        for document in corpus.documents(Side.TRAIN, parts[number % len(parts)])
        if not encoder.holds_marker(f"{document.path}\n{document.text}")
    ]
    maker = SampleMaker(
        CorpusText([text for _, text in documents], [path for path, _ in documents]), encoder, settings.fim_share,
        load_splits(generated) if generated else (), settings.generated_share, window_chars(max(settings.row_tokens)),
        settings.snippet_share,
    )  # fmt: skip
    dtype = np.uint16 if manifest.vocab_size <= MAX_SHORT_VOCAB else np.uint32
    ids = np.empty((settings.blocks_a_shard, settings.block_tokens), dtype)
    is_middle = np.empty(ids.shape, np.bool_)
    slot = (number // len(parts)) * SLOTS_A_ROUND
    for block in range(settings.blocks_a_shard):
        tokens = settings.row_tokens[block % len(settings.row_tokens)]
        rng = Random(f"{settings.seed}:{number}:{block}")
        for at in range(0, settings.block_tokens, tokens):
            row, marks, slot = maker.row(slot, tokens, rng)
            ids[block, at : at + tokens] = row
            is_middle[block, at : at + tokens] = marks
    return ids, np.packbits(is_middle, axis=1)


@dataclass(frozen=True)
class TokenBlock:
    """ids and is_middle, both (rows, row_tokens): int64 and bool."""

    ids: Tensor
    is_middle: Tensor


class BlockSource:
    """The blocks of a data folder, read in place from disk."""

    def __init__(self, folder: Path, seed: int) -> None:
        """Look for every shard; PipelineError when some are missing."""
        self.manifest: DataManifest = load_manifest(folder)
        settings = self.manifest.settings
        if missing := len(_missing_shards(folder, settings)):
            raise PipelineError(
                f"{folder} lacks {missing} of {settings.num_shards} shards; run the same `draft-model data` again"
            )
        self._shard = lru_cache(OPEN_SHARDS)(partial(_open_shard, folder))
        self._blocks_a_shard = settings.blocks_a_shard
        self._row_tokens = settings.row_tokens
        self._seed = seed
        self.num_blocks = settings.num_shards * settings.blocks_a_shard
        self.block_tokens = settings.block_tokens

    def block(self, place: int) -> TokenBlock:
        """The block at a position of the order, which continues from epoch to epoch."""
        epoch, at = divmod(place, self.num_blocks)
        shard, row = divmod(int(_order(self._seed, epoch, self.num_blocks)[at]), self._blocks_a_shard)
        tokens = self._row_tokens[row % len(self._row_tokens)]
        all_ids, is_middle = self._shard(shard)
        ids = torch.from_numpy(all_ids[row].astype(np.int64)).view(-1, tokens)
        bits = np.unpackbits(is_middle[row], count=self.block_tokens).astype(np.bool_)
        return TokenBlock(ids, torch.from_numpy(bits).view(-1, tokens))


def _open_shard(folder: Path, number: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]:
    ids, is_middle = (np.load(path, mmap_mode="r") for path in shard_paths(folder, number))
    return ids, is_middle


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, num_blocks: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng([seed, epoch]).permutation(num_blocks)
