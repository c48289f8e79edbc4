"""Token ids of prompts and files in one template."""

import json
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

from completion_server.prompt.templates import Order, Template
from draft_model.core.errors import PipelineError
from draft_model.data.snippets import NO_CONTEXT, PromptContext, file_texts, lead_of


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
