"""A tokenizer for text from users that never produces a control token.

Source code may contain "<|fim_middle|>" or "</s>". The prompt builder inserts markers by id, and tokenises text with a
copy of the model's tokenizer that lacks them. They are removed from the vocabulary too, so that no merge builds one.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel

from completion_server.core.errors import ConfigError
from completion_server.core.vocabulary import is_control
from completion_server.text.prompt.templates import Template
from completion_server.text.prompt.tokens.boundaries import Rule, find_rule, flat

MAX_NEWLINE_TOKENS = 256
"""A vocabulary may have thousands; the lowest ids are the most frequent, and the text rules handle the others."""
_NEWLINE_BYTE = "<0x0A>"


@dataclass(frozen=True, slots=True)
class PlainText:
    """A tokenizer without control tokens, and the properties that reuse depends on."""

    tokenizer: Tokenizer
    rule: Rule | None
    """The rule of where its results may be cut; None if none is known."""
    adds_blank: bool
    """Whether the model's tokenizer puts a blank before the first character of a text; this copy does not."""
    has_normalizer: bool
    """Whether it may change a text before splitting it; the rule holds only for texts that it does not change."""

    def encode(self, text: str) -> Any:  # noqa: ANN401 - tokenizers has no type for it
        """Tokenise one text. A batch of one releases the interpreter lock; the call for a single text does not."""
        return self.tokenizer.encode_batch([text], add_special_tokens=False)[0]

    def is_unchanged(self, text: str) -> bool:
        """Return whether the normalizer leaves the text as it is."""
        if not self.has_normalizer or text.isascii():
            return True
        changed: str = self.tokenizer.normalizer.normalize_str(text)
        return changed == text


def make_plain(tokenizer: Tokenizer, markers: Collection[str] = ()) -> PlainText:
    """Return the copy of a tokenizer without control tokens; `markers` are control tokens in any form.

    Raises:
        ConfigError: it is not a byte-pair encoding, the only kind from which tokens can be removed.

    """
    spec = json.loads(tokenizer.to_str())
    if spec["model"].get("type") != "BPE":
        msg = f"the tokenizer is of the kind {spec['model'].get('type')}: only byte-pair encodings can be used"
        raise ConfigError(msg)
    control = {token["content"] for token in spec["added_tokens"] if is_control(token)}
    control |= set(markers)
    spec["added_tokens"] = [token for token in spec["added_tokens"] if token["content"] not in control]
    spec["post_processor"] = spec["truncation"] = spec["padding"] = None
    _forget(spec["model"], control)
    adds_blank = _drop_blank(spec)
    has_normalizer = any(part["type"] != "Replace" for part in flat(spec["normalizer"], "normalizers"))
    return PlainText(Tokenizer.from_str(json.dumps(spec)), find_rule(spec), adds_blank, has_normalizer)


def _forget(model: dict[str, Any], control: Collection[str]) -> None:
    """Remove control tokens from the vocabulary, and the merges that would build one."""
    names = set(control) - {model.get("unk_token")}
    pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
    model["merges"] = [
        pair
        for pair in pairs
        if "".join(pair) not in control and control.isdisjoint(pair)  # type: ignore[attr-defined]
    ]
    model["vocab"] = {token: index for token, index in model["vocab"].items() if token not in names}


def _drop_blank(spec: dict[str, Any]) -> bool:
    """Remove the parts that put a blank before a text; return whether there were any."""
    parts = flat(spec["normalizer"], "normalizers")
    kept = [part for part in parts if part["type"] != "Prepend"]
    spec["normalizer"] = {"type": "Sequence", "normalizers": kept} if kept else None
    is_dropped = len(kept) < len(parts)
    for stage in flat(spec["pre_tokenizer"], "pretokenizers"):
        if stage["type"] == "Metaspace" and stage["prepend_scheme"] != "never":
            stage["prepend_scheme"] = "never"
            is_dropped = True
        if stage["type"] == "ByteLevel" and stage["add_prefix_space"]:
            stage["add_prefix_space"] = False
            is_dropped = True
    return is_dropped


def newline_token_ids(tokenizer: Tokenizer, vocabulary: Mapping[str, int]) -> tuple[int, ...]:
    """Return the lowest ids of the tokens that contain a newline; `vocabulary` has no control tokens."""
    newline = "Ċ" if _is_byte_level(tokenizer) else "\n"
    ids = sorted(index for token, index in vocabulary.items() if newline in token or token == _NEWLINE_BYTE)
    return tuple(ids[:MAX_NEWLINE_TOKENS])


def end_token_ids(template: Template, vocabulary: Mapping[str, int]) -> tuple[int, ...]:
    """Return the ids of the family's markers and end tokens that the vocabulary has."""
    ends = (vocabulary.get(token) for token in (*template.markers, *template.ends))
    return tuple(sorted({index for index in ends if index is not None}))


def _is_byte_level(tokenizer: Tokenizer) -> bool:
    return isinstance(tokenizer.decoder, ByteLevel) or "ByteLevel" in repr(tokenizer.pre_tokenizer)
