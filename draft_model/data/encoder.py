"""Token ids of prompts and files in one template, with pieces of other files in front as the server renders them.

Snippets stand behind file markers, under text headers in the prefix, or as comments there, as the template says.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from tokenizers import Tokenizer

from completion_server.prompt.templates import Order, PathAt, Template
from draft_model.core import PipelineError

PATH_PARTS = 3
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
    texts = [f"{short_path(snippet.path)}\n{_whole(snippet)}" for snippet in context.snippets]
    return [*texts, f"{short_path(context.path)}\n" if template.path_at is PathAt.OUTSIDE else ""]


def lead_of(template: Template, context: PromptContext) -> str:
    """The text at the start of the prefix: headers, comments or the path, as the template says."""
    if not context.snippets:
        return ""
    own = short_path(context.path)
    if template.file:
        return f"{own}\n" if template.path_at is PathAt.INSIDE else ""
    if template.text_header:
        texts = [_headed(template, short_path(snippet.path)) + _whole(snippet) for snippet in context.snippets]
        return "".join([*texts, _headed(template, own)])
    leader = comment_leader(context.path)
    lines = [line for each in context.snippets for line in (f"{short_path(each.path)}:", *_whole(each).splitlines())]
    return "".join(f"{leader} {line}".rstrip() + "\n" for line in lines)


def short_path(path: str) -> str:
    """The last parts of a path, on one line."""
    return " ".join("/".join(PurePosixPath(path).parts[-PATH_PARTS:]).split())


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
        self.stops = sorted(
            {vocabulary[token] for token in (*template.markers, *template.ends, end) if token in vocabulary}
        )
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
        files = [token for text in file_texts(template, context) for token in self._encode_opened(text)]
        if template.order is Order.PREFIX_ONLY:
            return [*self.begin, *files, *self.encode(before + typed)]
        left = [self._ids[template.prefix], *self.encode(before if template.middle else before + typed)]
        right = [self._ids[template.suffix], *self.encode(after)]
        both = left + right if template.order is Order.PREFIX_FIRST else right + left
        if not template.middle:
            return [*self.begin, *files, *both]
        return [*self.begin, *files, *both, self._ids[template.middle], *self.encode(typed)]

    def encode_file(self, pieces: Sequence[str]) -> list[int]:
        """Token ids of a file as plain text, each piece tokenised on its own."""
        opening = [self._ids[self.template.file]] if self.template.file else list(self.begin)
        pieces = [self._opening + piece if number == 0 else piece for number, piece in enumerate(pieces)]
        return opening + [token for piece in pieces for token in self.encode(piece)]

    def _encode_opened(self, text: str) -> list[int]:
        return [self._ids[self.template.file], *self.encode(text)]


def _without_blank(backend: Tokenizer) -> Tokenizer | None:
    """A copy that neither adds a blank before a text nor removes one; None if the tokenizer adds none.

    The server adds one blank before the text of the whole prompt, and none before the other parts.
    """
    spec = json.loads(backend.to_str())
    parts = [*_parts(spec["normalizer"], "normalizers"), *_parts(spec["pre_tokenizer"], "pretokenizers")]
    adding = [part for part in parts if _adds_blank(part)]
    for part in adding:
        part |= {"prepend": ""} if part["type"] == "Prepend" else {}
        part |= {"prepend_scheme": "never"} if part["type"] == "Metaspace" else {}
        part |= {"add_prefix_space": False} if part["type"] == "ByteLevel" else {}
    for part in _parts(spec["decoder"], "decoders"):
        part |= {"start": 0} if part["type"] == "Strip" else {}
        part |= {"prepend_scheme": "never"} if part["type"] == "Metaspace" else {}
    return Tokenizer.from_str(json.dumps(spec)) if adding else None


def _parts(stage: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    if stage is None:
        return []
    return [part for inner in stage[name] for part in _parts(inner, name)] if stage["type"] == "Sequence" else [stage]


def _adds_blank(part: dict[str, Any]) -> bool:
    return (
        part["type"] == "Prepend"
        or (part["type"] == "Metaspace" and part["prepend_scheme"] != "never")
        or (part["type"] == "ByteLevel" and bool(part["add_prefix_space"]))
    )


def _begin_ids(backend: Tokenizer) -> list[int]:
    """The tokens that the tokenizer puts before a text: its bos token, if it adds one."""
    with_begin: list[int] = backend.encode("a", add_special_tokens=True).ids
    text: list[int] = backend.encode("a", add_special_tokens=False).ids
    return with_begin[: next(at for at in range(len(with_begin)) if with_begin[at : at + len(text)] == text)]
