"""The tokenizer that target and draft share, and token ids in the prompt templates, which are the server's.

The tokenizer is byte-level BPE over code, with the fill-in-the-middle markers. Words have an optional leading
non-letter, digits are single tokens, and punctuation includes the newlines behind it, so `):` and a line end cost one
token. The tokenizer adds no token by itself: the prompt template places every marker. Pieces of other files stand
behind file markers, under text headers in the prefix, or as comments there, as the template says.
"""

import json
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from completion_server.core.errors import ConfigError
from completion_server.core.languages import language_of
from completion_server.core.request import Snippet
from completion_server.text.prompt.builder import begin_ids
from completion_server.text.prompt.loading import load_prompt_builder
from completion_server.text.prompt.settings import PromptSettings
from completion_server.text.prompt.snippets import NOTHING, Rendered, SnippetRenderer
from completion_server.text.prompt.templates import EMBEDDED, FimOrder, Template
from completion_server.text.prompt.tokens.boundaries import flat
from completion_server.text.prompt.tokens.plaintext import end_token_ids, make_plain
from completion_server.text.prompt.tokens.reuse import EMPTY, Encoded
from draft_model.core import CONTEXT_TOKENS, VOCAB_SIZE, PipelineError, replacing_folder

COMPLETION_ENDS = {"codellama": "▁<EOT>"}
"""The token that ends a completion, in families that end a file with another one ("Code Llama", section 2.3)."""
UNCUT = 1 << 24
"""Tokens: a budget for snippets that cuts none, because samples have cut them already."""
SHOWN_TOKENS = 8
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


@dataclass(frozen=True)
class PromptContext:
    """The path of the edited file, and the snippets that its prompt shows; the best has the highest score."""

    path: str = ""
    snippets: tuple[Snippet, ...] = ()


NO_CONTEXT = PromptContext()


class TemplateEncoder:
    """Token ids in one template with one tokenizer. Each part of a prompt is tokenised on its own.

    Callers leave out text that holds a marker (`holds_marker`): its tokens would be the marker's.
    """

    def __init__(self, backend: Tokenizer, template: Template, end: str) -> None:
        """Look up the markers' ids; PipelineError names the markers that the tokenizer lacks."""
        vocabulary = backend.get_vocab(with_added_tokens=True)
        missing = [marker for marker in (*template.markers, end) if marker not in vocabulary]
        if missing:
            raise PipelineError(f"the tokenizer lacks {', '.join(missing)} of the template {template.name}")
        self.template = template
        self.end = vocabulary[end]
        self.begin = list(begin_ids(backend))
        plain = _without_blank(backend)
        self._opening = " " if plain else ""
        self._backend = plain or backend
        self.stops = sorted({self.end, *end_token_ids(template, vocabulary)})
        """Tokens that end a completion in the server."""
        self._ids = {marker: vocabulary[marker] for marker in template.markers}
        self._reserved = (*template.markers, end)
        self._renderer = SnippetRenderer(template, self._ids.get(template.file))
        self.vocab_size = int(backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        """Token ids of one text, tokenised on its own, without markers."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens left out."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=True)
        return text

    def holds_marker(self, text: str) -> bool:
        """Whether a text contains one of the markers as text."""
        return any(marker in text for marker in self._reserved)

    def encode_prompt(self, before: str, typed: str, after: str, context: PromptContext = NO_CONTEXT) -> list[int]:
        """Token ids of the prompt for the text between `typed` and `after`, with other files in front."""
        template = self.template
        shown = self._render(context) if context.snippets else NOTHING
        before, files = self._opening + shown.lead + before, list(shown.ids)
        if template.is_all_typed:
            before, typed = "", before + typed
        elif not template.has_typed:
            before, typed = before + typed, ""
        if template.order is FimOrder.PREFIX_ONLY:
            return [*self.begin, *files, *self.encode(before)]
        left = [self._ids[template.prefix], *self.encode(before)]
        right = [self._ids[template.suffix], *self.encode(after)]
        both = left + right if template.order is FimOrder.PREFIX_FIRST else right + left
        if not template.middle:
            return [*self.begin, *files, *both]
        return [*self.begin, *files, *both, self._ids[template.middle], *self.encode(typed)]

    def _render(self, context: PromptContext) -> Rendered:
        path, language = quote(context.path, errors="replace"), language_of("", context.path, "").name.lower()
        return self._renderer.render(context.snippets, path, language, UNCUT, self._encoded)

    def _encoded(self, text: str) -> Encoded:
        return replace(EMPTY, text=text, ids=array("I", self.encode(text)))

    def encode_file(self, pieces: Sequence[str]) -> list[int]:
        """Token ids of a file as plain text, each piece tokenised on its own."""
        opening = [self._ids[self.template.file]] if self.template.file else list(self.begin)
        pieces = [self._opening + piece if number == 0 else piece for number, piece in enumerate(pieces)]
        return opening + [token for piece in pieces for token in self.encode(piece)]


def _without_blank(backend: Tokenizer) -> Tokenizer | None:
    """The server's copy, which adds no blank before a text, made to remove none either; None if the original adds none.

    The server adds one blank before the text of the whole prompt, and none before the other parts.
    """
    plain = make_plain(backend)
    if not plain.adds_blank:
        return None
    spec = json.loads(plain.tokenizer.to_str())
    for part in flat(spec["decoder"], "decoders"):
        part |= {"start": 0} if part["type"] == "Strip" else {}
        part |= {"prepend_scheme": "never"} if part["type"] == "Metaspace" else {}
    return Tokenizer.from_str(json.dumps(spec))


def server_template(folder: Path, settings: PromptSettings | None = None) -> Template:
    """The template that the server uses for a model or tokenizer folder; PipelineError when it can't serve it."""
    settings = settings or PromptSettings()
    try:
        builder = load_prompt_builder(str(folder), max_prompt_tokens=settings.max_prompt_tokens, settings=settings)
    except ConfigError as error:
        raise PipelineError(f"the server builds no prompts for {folder}: {error}") from error
    return builder.template


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


def write_tokenizer(texts: Iterable[str], out: Path, vocab_size: int) -> int:
    """Learn a tokenizer and write it to the new folder `out`, whole or not at all; return its number of tokens."""
    with replacing_folder(out, mark="") as folder:
        learnt = train_tokenizer(texts, vocab_size)
        learnt.save_pretrained(str(folder))
    return len(learnt)


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


def check_same_vocabulary(draft: Path, target: Path) -> None:
    """Raise PipelineError, which names the tokens, when the vocabularies of a draft and its target differ."""
    ours, theirs = load_tokenizer(draft).get_vocab(), load_tokenizer(target).get_vocab()
    differing = sorted(token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token))
    if differing:
        shown = ", ".join(map(repr, differing[:SHOWN_TOKENS]))
        raise PipelineError(
            f"{draft} and {target} have other vocabularies: {len(differing):,} tokens differ: {shown} ...; a draft "
            "takes its target's tokenizer"
        )
