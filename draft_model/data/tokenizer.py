"""The tokenizer that target and draft share, and the prompt templates, which are the server's.

The tokenizer is byte-level BPE over code, with the fill-in-the-middle markers. Words have an optional leading
non-letter, digits are single tokens, and punctuation includes the newlines behind it, so `):` and a line end cost one
token. The tokenizer adds no token by itself: the prompt template places every marker.
"""

from collections.abc import Iterable
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from completion_server.core.errors import ConfigError
from completion_server.prompt.loading import load_prompt_builder
from completion_server.prompt.settings import PromptSettings
from completion_server.prompt.templates import EMBEDDED, Order, PathAt, Template
from draft_model.core import CONTEXT_TOKENS, VOCAB_SIZE, PipelineError
from draft_model.data.encoder import TemplateEncoder

COMPLETION_ENDS = {"codellama": "▁<EOT>"}
"""The token that ends a completion, in families that end a file with another one ("Code Llama", section 2.3)."""

_NAMED_IN_FINGERPRINTS = ("name", "order", "prefix", "suffix", "middle", "file", "is_typed_line_only")
_RECORDED = (*_NAMED_IN_FINGERPRINTS, "ends", "path_at", "text_header")
END = "<|endoftext|>"
SPECIAL_TOKENS = (END, *EMBEDDED.markers)
PATTERN = (
    r"[^\r\n\p{L}\p{N}]?\p{L}+"  # a word with the space, dot or underscore before it
    r"|\p{N}"  # one digit
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"  # punctuation and the line end behind it
    r"|\s*[\r\n]+"  # line ends
    r"|\s+(?!\S)"  # indentation, less the space that the word takes
    r"|\s+"
)


def server_template(folder: Path, settings: PromptSettings | None = None) -> Template:
    """The template that the server uses for a model or tokenizer folder; PipelineError when it can't serve it."""
    settings = settings or PromptSettings()
    try:
        builder = load_prompt_builder(str(folder), max_prompt_tokens=settings.max_prompt_tokens, settings=settings)
    except ConfigError as error:
        raise PipelineError(f"the server builds no prompts for {folder}: {error}") from error
    return builder.template


def template_record(template: Template) -> dict[str, Any]:
    """The fields of a template that shape a prompt, for JSON."""
    fields = asdict(template)
    record = {name: fields[name] for name in _RECORDED}
    return record | {"order": template.order.value, "path_at": template.path_at.value}


def read_template(record: dict[str, Any]) -> Template:
    """The template of a record, which may be of an earlier version and lack the last fields."""
    fields = {name: value for name, value in record.items() if name in _RECORDED}
    return Template(
        **fields
        | {
            "order": Order(record["order"]),
            "path_at": PathAt(record.get("path_at", PathAt.NOWHERE.value)),
            "ends": tuple(record.get("ends", ())),
        }
    )


def template_fingerprint(template: Template) -> str:
    """The text that names a template in fingerprints. Its form is fixed: checkpoints are compared by its hash."""
    record = template_record(template)
    return f"Layout({', '.join(f'{name}={record[name]!r}' for name in _NAMED_IN_FINGERPRINTS)})"


def train_tokenizer(texts: Iterable[str], vocab_size: int = VOCAB_SIZE) -> PreTrainedTokenizerFast:
    """Learn a vocabulary of `vocab_size` tokens, the special ones first (ids 0 to 4) and all 256 bytes included.

    Raises PipelineError when there are no texts.
    """
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
    rest = iter(texts)
    first = next(rest, None)
    if first is None:
        raise PipelineError("there is no text to learn a tokenizer from: the corpus has no training side")
    tokenizer.train_from_iterator(chain((first,), rest), trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token=END,
        eos_token=END,
        pad_token=END,
        additional_special_tokens=list(EMBEDDED.markers),
        model_max_length=CONTEXT_TOKENS,
        clean_up_tokenization_spaces=False,
    )


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Load a tokenizer from a folder; PipelineError when there is none, or it has no end token."""
    if not (folder / "tokenizer.json").is_file():
        raise PipelineError(f"no tokenizer.json in {folder}")
    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(str(folder))
    if tokenizer.eos_token is None:
        raise PipelineError(f"the tokenizer in {folder} has no end token")
    loaded: PreTrainedTokenizerFast = tokenizer
    return loaded


def make_encoder(tokenizer: PreTrainedTokenizerFast, template: Template = EMBEDDED) -> TemplateEncoder:
    """The encoder of a tokenizer in a template. Its end token ends a completion, unless the family has another one."""
    end: Any = COMPLETION_ENDS.get(template.name, tokenizer.eos_token)
    return TemplateEncoder(tokenizer.backend_tokenizer, template, str(end))


def load_encoder(folder: Path) -> TemplateEncoder:
    """The encoder of a model folder, in the template that the server uses for it; one of our own is known at once."""
    tokenizer = load_tokenizer(folder)
    vocabulary = tokenizer.get_vocab()
    is_ours = all(token in vocabulary for token in SPECIAL_TOKENS) and "<|repo_name|>" not in vocabulary
    return make_encoder(tokenizer, EMBEDDED if is_ours else server_template(folder))


def differing_tokens(ours: PreTrainedTokenizerFast, theirs: PreTrainedTokenizerFast) -> list[str]:
    """The tokens whose ids are not the same in both vocabularies, those of the lowest ids first."""
    left, right = ours.get_vocab(), theirs.get_vocab()
    differing = {token for token in left.keys() | right.keys() if left.get(token) != right.get(token)}
    return sorted(differing, key=lambda token: (min(left.get(token, 1 << 60), right.get(token, 1 << 60)), token))


def check_same_vocabulary(draft: Path, target: Path) -> None:
    """Raise PipelineError, which names the tokens, when the vocabularies of a draft and its target differ."""
    differing = differing_tokens(load_tokenizer(draft), load_tokenizer(target))
    if differing:
        shown = ", ".join(repr(token) for token in differing[:8])
        raise PipelineError(
            f"{draft} and {target} have other vocabularies: {len(differing):,} tokens differ: {shown}"
            f"{' ...' if len(differing) > 8 else ''}; a draft takes its target's tokenizer"  # noqa: PLR2004
        )
