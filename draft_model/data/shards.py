"""Training data on disk: blocks of rows in shards, each a pure function of corpus, tokenizer, settings and number.

    data.json  tokenizer/  shard-00000/  shard-00001/ ...

One process computes a block at a time. All rows of a block have the same length; the lengths alternate from block to
block, because attention over short rows costs less. A shard is a data set of Hugging Face's `datasets`, mapped into
memory, and reads one part of the corpus, so its memory does not grow with the corpus. After an interruption only
missing shards are made, and several can be made at the same time.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from completion_server.text.prompt.templates import Template
from draft_model.core import PipelineError, file_digest, replacing_folder, write_atomically
from draft_model.corpus.store import Corpus, Side
from draft_model.data.fim import load_splits
from draft_model.data.samples import FIM_SHARE, CorpusText, SampleMaker, window_chars
from draft_model.data.tokenizer import load_tokenizer, make_encoder

MANIFEST = "data.json"
TOKENIZER = "tokenizer"
SHARD = "dataset_info.json"
"""The file that marks a shard's folder."""
SLOTS_A_ROUND = 1 << 24
LABELLED_BY = "target"
"""The manifest's field with the digest of the target that labelled the data."""
IDS, MIDDLE, ROW_TOKENS, LIKELY, LOGPROBS = "ids", "is_middle", "row_tokens", "likely", "logprobs"
"""Columns of the data: a block's token ids, the marks of its completions, and the length of its rows; if it is labelled
also the tokens that the target finds most likely behind each one, best first, and the logarithms of their chances."""
TYPES = {IDS: "uint32", MIDDLE: "bool", ROW_TOKENS: "uint32", LIKELY: "uint32", LOGPROBS: "float16"}


@dataclass(frozen=True)
class DataSettings:
    """How rows are made. Lengths and sizes in tokens."""

    num_tokens: int
    block_tokens: int = 2_048
    row_tokens: tuple[int, ...] = (1024, 256, 512, 256)
    blocks_a_shard: int = 8_192
    fim_share: float = FIM_SHARE
    snippet_share: float = 0.0
    generated_share: float = 0.0
    seed: int = 20

    def __post_init__(self) -> None:
        """Refuse rows that do not divide a block."""
        if any(tokens < 1 or self.block_tokens % tokens for tokens in self.row_tokens):
            raise ValueError("every length of row must divide the block")

    @property
    def num_shards(self) -> int:
        """Shards that hold at least `num_tokens`."""
        return max(1, -(-self.num_tokens // (self.block_tokens * self.blocks_a_shard)))

    @property
    def made_tokens(self) -> int:
        """Tokens of all shards."""
        return self.num_shards * self.block_tokens * self.blocks_a_shard


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest that `build_data` wrote; PipelineError names the command to run when it is missing."""
    path = folder / MANIFEST
    if not path.is_file():
        raise PipelineError(f"no training data in {folder}; make it with `draft-model data --out {folder}`")
    manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return manifest


def is_labelled(folder: Path) -> bool:
    """Whether a data folder has the labels of a target; False when there is none."""
    return (folder / MANIFEST).is_file() and LABELLED_BY in read_manifest(folder)


def build_data(
    corpus: Corpus, tokenizer: Path, template: Template, out: Path, settings: DataSettings, *,
    generated: Path | None = None, num_workers: int = 1,
    on_shard: Callable[[int, int], None] = lambda done, total: None,
) -> None:  # fmt: skip
    """Make the missing shards of `out`. `on_shard(done, total)` is called after each.

    Raises PipelineError when `out` holds data of other sources, the corpus has no training text, or the disk refuses.
    """
    encoder = make_encoder(load_tokenizer(tokenizer), template)
    if not corpus.parts(Side.TRAIN):
        raise PipelineError(f"the corpus in {corpus.folder} has no training text")
    if generated:
        load_splits(generated)  # Refuses an invalid file before anything is written.
    manifest = {
        "settings": asdict(settings), "template": asdict(template), "corpus": corpus.manifest.digest,
        "tokenizer": file_digest(tokenizer / "tokenizer.json"),
        "generated": file_digest(generated) if generated else "", "vocab_size": encoder.vocab_size,
    }  # fmt: skip
    open_folder(out, tokenizer, json.loads(json.dumps(manifest, default=lambda member: member.value)))
    missing = missing_shards(out, settings)
    done = settings.num_shards - len(missing)
    write = partial(_make_shard, corpus.folder, out, template, settings, generated)
    on_shard(done, settings.num_shards)
    with ExitStack() as stack:
        each: Callable[..., Iterator[None]] = map
        if num_workers > 1:
            each = stack.enter_context(ProcessPoolExecutor(num_workers)).map
        for done, _ in enumerate(each(write, missing), done + 1):  # noqa: B020 - counts on from the shards that are there
            on_shard(done, settings.num_shards)


def _shard(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:05d}"


def missing_shards(folder: Path, settings: DataSettings) -> list[int]:
    """The numbers of the shards that a data folder lacks."""
    return [number for number in range(settings.num_shards) if not (_shard(folder, number) / SHARD).is_file()]


def open_folder(out: Path, tokenizer: Path, manifest: dict[str, Any]) -> None:
    """Make a data folder with its manifest and tokenizer; PipelineError when it is there and was made otherwise."""
    if (out / MANIFEST).is_file():
        old, new = ({**one.pop("settings"), **one} for one in (read_manifest(out), dict(manifest)))
        others = [f"{name} {old.get(name)!r}, not {new[name]!r}" for name in new if old.get(name) != new[name]]
        if others:
            raise PipelineError(
                f"{out} holds data made otherwise ({', '.join(others)}); remove it or choose another --out"
            )
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        no_weights = shutil.ignore_patterns("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")  # of a target's folder
        shutil.copytree(tokenizer, out / TOKENIZER, ignore=no_weights, dirs_exist_ok=True)
    except OSError as error:
        raise PipelineError(f"cannot write {out}: {error.strerror}") from error
    write_atomically(out / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())


def _make_shard(
    corpus: Path, out: Path, template: Template, settings: DataSettings, generated: Path | None, number: int
) -> None:
    write_shard(out, number, make_blocks(Corpus(corpus), out / TOKENIZER, template, settings, generated, number))


def write_shard(out: Path, number: int, blocks: Sequence[Mapping[str, Any]]) -> None:
    """Write the shard of a data folder whole or not at all; the blocks have the columns `TYPES`, or some of them."""
    from datasets import Dataset, Features, List, Value  # type: ignore[import-untyped]  # takes seconds to import

    features = Features({
        name: List(Value(kind)) if isinstance(blocks[0][name], np.ndarray) else Value(kind)
        for name, kind in TYPES.items() if name in blocks[0]
    })  # fmt: skip
    columns = {name: [block[name] for block in blocks] for name in features}
    with replacing_folder(_shard(out, number), SHARD) as folder:
        Dataset.from_dict(columns, features).save_to_disk(str(folder))


def make_blocks(
    corpus: Corpus, tokenizer: Path, template: Template, settings: DataSettings, generated: Path | None, number: int
) -> list[dict[str, Any]]:
    """The blocks of a shard: `ids` and `is_middle`, which marks completions, both flat, and `row_tokens`."""
    encoder = make_encoder(load_tokenizer(tokenizer), template)
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
    slot, blocks = (number // len(parts)) * SLOTS_A_ROUND, []
    for block in range(settings.blocks_a_shard):
        tokens, rng = settings.row_tokens[block % len(settings.row_tokens)], Random(f"{settings.seed}:{number}:{block}")
        ids, is_middle = np.empty(settings.block_tokens, np.uint32), np.empty(settings.block_tokens, np.bool_)
        for at in range(0, settings.block_tokens, tokens):
            ids[at : at + tokens], is_middle[at : at + tokens], slot = maker.row(slot, tokens, rng)
        blocks.append({"ids": ids, "is_middle": is_middle, "row_tokens": tokens})
    return blocks


def load_data(folder: Path) -> Any:  # noqa: ANN401 - datasets has no types
    """All blocks of a data folder, read in place from disk; PipelineError when shards are missing."""
    from datasets import concatenate_datasets, load_from_disk

    manifest = read_manifest(folder)
    settings = DataSettings(**manifest["settings"])
    if missing := len(missing_shards(folder, settings)):
        made_by = "label" if LABELLED_BY in manifest else "data"
        raise PipelineError(
            f"{folder} lacks {missing} of {settings.num_shards} shards; run the same `draft-model {made_by}` again"
        )
    shards = [load_from_disk(str(_shard(folder, number))) for number in range(settings.num_shards)]
    return concatenate_datasets(shards).with_format("numpy")
