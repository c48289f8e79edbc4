"""The tokenizer that target and draft share, and token ids in the prompt templates, which are the server's.

The tokenizer is byte-level BPE over code, with the fill-in-the-middle markers. Words have an optional leading
non-letter, digits are single tokens, and punctuation includes the newlines behind it, so `):` and a line end cost one
token. The tokenizer adds no token by itself: the prompt template places every marker. Pieces of other files stand
behind file markers, under text headers in the prefix, or as comments there, as the template says.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from completion_server.core.errors import ConfigError
from completion_server.prompt.loading import load_prompt_builder
from completion_server.prompt.settings import PromptSettings
from completion_server.prompt.snippets import short_path
from completion_server.prompt.templates import EMBEDDED, FimOrder, PathAt, Template
from completion_server.prompt.tokens.boundaries import flat
from completion_server.prompt.tokens.plaintext import end_token_ids, make_plain
from draft_model.core import CONTEXT_TOKENS, VOCAB_SIZE, PipelineError, replacing_folder

COMPLETION_ENDS = {"codellama": "▁<EOT>"}
"""The token that ends a completion, in families that end a file with another one ("Code Llama", section 2.3)."""

_NAMED_IN_FINGERPRINTS = ("name", "order", "prefix", "suffix", "middle", "file", "lines_behind")
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
HASH_ENDINGS = (
    "dockerfile", "makefile", ".cmake", ".coffee", ".ex", ".exs", ".jl", ".mk", ".nim", ".pl", ".ps1", ".py", ".pyi",
    ".r", ".rb", ".sh", ".toml", ".yaml", ".yml",
)  # fmt: skip
DASH_ENDINGS = (".adb", ".ads", ".elm", ".hs", ".lua", ".sql", ".vhd", ".vhdl")


@dataclass(frozen=True)
class Snippet:
    """A piece of another file, in whole lines."""

    path: str
    text: str


@dataclass(frozen=True)
class PromptContext:
    """The path of the edited file, and the snippets that its prompt shows; the best snippet is the last."""

    path: str = ""
    snippets: tuple[Snippet, ...] = ()


NO_CONTEXT = PromptContext()


def file_texts(template: Template, context: PromptContext) -> list[str]:
    """The texts behind file markers, which stand before the first marker of the prompt itself."""
    if not (template.file and context.snippets):
        return []
    if template.path_at is PathAt.NOWHERE:
        return [_whole(snippet) for snippet in context.snippets]
    texts = [f"{shown_path(snippet.path)}\n{_whole(snippet)}" for snippet in context.snippets]
    return [*texts, f"{shown_path(context.path)}\n" if template.path_at is PathAt.OUTSIDE else ""]


def lead_of(template: Template, context: PromptContext) -> str:
    """The text at the start of the prefix: headers, comments or the path, as the template says."""
    if not context.snippets:
        return ""
    own = shown_path(context.path)
    if template.file:
        return f"{own}\n" if template.path_at is PathAt.INSIDE else ""
    if template.text_header:
        texts = [_headed(template, shown_path(snippet.path)) + _whole(snippet) for snippet in context.snippets]
        return "".join([*texts, _headed(template, own)])
    leader = comment_leader(context.path)
    lines = [line for each in context.snippets for line in (f"{shown_path(each.path)}:", *_whole(each).splitlines())]
    return "".join(f"{leader} {line}".rstrip() + "\n" for line in lines)


def shown_path(path: str) -> str:
    """The last parts of a path, on one line, as the server shows those of a URI."""
    return short_path(quote(path, errors="replace"))


def comment_leader(path: str) -> str:
    """The characters that open a line comment in a file of this name."""
    if path.lower().endswith(HASH_ENDINGS):
        return "#"
    return "--" if path.lower().endswith(DASH_ENDINGS) else "//"


def _whole(snippet: Snippet) -> str:
    return snippet.text.rstrip("\r\n") + "\n"


def _headed(template: Template, path: str) -> str:
    return template.text_header.replace("{path}", path)


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
        self.begin = _begin_ids(backend)
        plain = _without_blank(backend)
        self._opening = " " if plain else ""
        self._backend = plain or backend
        self.stops = sorted({self.end, *end_token_ids(template, vocabulary)})
        """Tokens that end a completion in the server."""
        self._ids = {marker: vocabulary[marker] for marker in template.markers}
        self._reserved = (*template.markers, end)
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
        before = self._opening + lead_of(template, context) + before
        texts = file_texts(template, context)
        files = [token for text in texts for token in (self._ids[template.file], *self.encode(text))]
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


def _begin_ids(backend: Tokenizer) -> list[int]:
    """The tokens that the tokenizer puts before a text: its bos token, if it adds one."""
    with_begin: list[int] = backend.encode("a", add_special_tokens=True).ids
    text: list[int] = backend.encode("a", add_special_tokens=False).ids
    return with_begin[: next(at for at in range(len(with_begin)) if with_begin[at : at + len(text)] == text)]


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
            "order": FimOrder(record["order"]),
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
    differing = [token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token)]
    if differing:
        differing.sort(key=lambda token: (min(ours.get(token, 1 << 60), theirs.get(token, 1 << 60)), token))
        shown = ", ".join(repr(token) for token in differing[:8])
        raise PipelineError(
            f"{draft} and {target} have other vocabularies: {len(differing):,} tokens differ: {shown}"
            f"{' ...' if len(differing) > 8 else ''}; a draft takes its target's tokenizer"  # noqa: PLR2004
        )
