"""The tokenizer that target and draft share: byte-level BPE over code, with the fill-in-the-middle markers.

Words carry an optional leading non-letter, digits stand alone, punctuation runs take the newlines behind them, so `):`
and a line end cost one token. No token is added by itself: the prompt layout owns every marker.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from draft_model.errors import PipelineError
from draft_model.presets import CONTEXT_TOKENS, VOCAB_SIZE

END = "<|endoftext|>"
FIM_PREFIX = "<|fim_prefix|>"
FIM_SUFFIX = "<|fim_suffix|>"
FIM_MIDDLE = "<|fim_middle|>"
FILE_SEP = "<|file_sep|>"
SPECIAL_TOKENS = (END, FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE, FILE_SEP)

PATTERN = (
    r"[^\r\n\p{L}\p{N}]?\p{L}+"  # a word with the space, dot or underscore before it
    r"|\p{N}"  # one digit
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"  # punctuation and the line end behind it
    r"|\s*[\r\n]+"  # line ends
    r"|\s+(?!\S)"  # indentation, less the space that the word takes
    r"|\s+"
)


def train_tokenizer(texts: Iterable[str], vocab_size: int = VOCAB_SIZE) -> PreTrainedTokenizerFast:
    """Learn a vocabulary of `vocab_size` tokens, the special ones first (ids 0 to 4) and all 256 bytes included."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token=END,
        eos_token=END,
        pad_token=END,
        additional_special_tokens=[FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE, FILE_SEP],
        model_max_length=CONTEXT_TOKENS,
        clean_up_tokenization_spaces=False,
    )


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Load a tokenizer from a model folder; PipelineError when it is missing or lacks a marker."""
    if not (folder / "tokenizer.json").is_file():
        raise PipelineError(f"no tokenizer.json in {folder}")
    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(str(folder))
    missing = [token for token in SPECIAL_TOKENS if token not in tokenizer.get_vocab()]
    if missing:
        raise PipelineError(f"the tokenizer in {folder} has no {', '.join(missing)}")
    loaded: PreTrainedTokenizerFast = tokenizer
    return loaded


class Encoder:
    """Text to token ids: each call tokenises its text on its own and adds no marker."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        backend: Any = tokenizer.backend_tokenizer
        self._backend = backend
        self.end, self.prefix, self.suffix, self.middle, self.file_sep = (
            int(backend.token_to_id(token)) for token in SPECIAL_TOKENS
        )

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: list[int]) -> str:
        """The text of token ids, special tokens left out."""
        text: str = self._backend.decode(ids, skip_special_tokens=True)
        return text
