"""The folder in which a build keeps its parts, so that it can be interrupted anywhere and started again.

corpus.jsonl  tokenizer/  <preset>.checkpoint
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from draft_model.budget import Budget
from draft_model.corpus import Corpus, collect_corpus, load_corpus, save_corpus
from draft_model.data import BatchSource, CorpusText
from draft_model.files import folder_atomically
from draft_model.presets import Preset
from draft_model.tokenizer import Encoder, load_tokenizer, train_tokenizer
from draft_model.train import SavePoint, Trainer, TrainResult, Watcher, run_fingerprint


@dataclass(frozen=True)
class Workspace:
    """Paths of the parts, and how to make each from the one before."""

    root: Path

    @property
    def corpus_path(self) -> Path:
        """The corpus, as JSON lines."""
        return self.root / "corpus.jsonl"

    @property
    def tokenizer_folder(self) -> Path:
        """The tokenizer, in the Hugging Face layout."""
        return self.root / "tokenizer"

    def checkpoint_path(self, preset: Preset) -> Path:
        """The checkpoint of a preset's run."""
        return self.root / f"{preset.name}.checkpoint"

    def ensure_corpus(self, folder: Path | None = None) -> Corpus:
        """The corpus that is there, or a new one."""
        if not self.corpus_path.is_file():
            save_corpus(collect_corpus(folder), self.corpus_path)
        return load_corpus(self.corpus_path)

    def ensure_tokenizer(self, corpus: Corpus, vocab_size: int) -> Encoder:
        """The tokenizer that is there, or a new one learnt from the corpus without its held-out files."""
        if not (self.tokenizer_folder / "tokenizer.json").is_file():
            tokenizer = train_tokenizer(corpus.texts(held_out=False), vocab_size)
            with folder_atomically(self.tokenizer_folder) as folder:
                tokenizer.save_pretrained(str(folder))
        return Encoder(load_tokenizer(self.tokenizer_folder))

    def fingerprint(self, preset: Preset) -> str:
        """What a checkpoint of `preset` here must carry."""
        vocab = _digest(self.tokenizer_folder / "tokenizer.json")
        return run_fingerprint(preset, vocab, _digest(self.corpus_path))

    def train(self, preset: Preset, corpus: Corpus, encoder: Encoder, budget: Budget, watcher: Watcher) -> TrainResult:
        """Train a preset to the end of its budget, from its checkpoint if there is one."""
        settings = preset.train
        text = CorpusText(corpus.texts(held_out=False))
        source = BatchSource(text, encoder, settings.batch_tokens, settings.row_tokens, settings.seed)
        trainer = Trainer(preset, source, budget, SavePoint(self.checkpoint_path(preset), self.fingerprint(preset)))
        return trainer.run(watcher)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
