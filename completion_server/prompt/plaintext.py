"""A tokenizer for text from users: no text in it ever becomes a control token.

Source code may contain "<|fim_middle|>" or "</s>". Markers are put into a prompt by id; text is tokenised with a copy
of the model's tokenizer from which they have been taken out, from the vocabulary too, so that no merge can build one
either.
"""

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from completion_server.core.errors import ConfigError
from completion_server.prompt.boundaries import Rule, find_rule, flat

_CONTROL_LOOK = re.compile(r"\s*▁?[<\[].*[>\]]\s*", re.DOTALL)
"""Some vocabularies hold markers, such as Qwen's <|fim_prefix|>, as ordinary added tokens: what looks like one is."""


@dataclass(frozen=True, slots=True)
class PlainText:
    """Tokenises text as text."""

    tokenizer: Tokenizer
    rule: Rule | None
    """Where its results may be cut; None if that is not known."""
    adds_blank: bool
    """Whether the model's tokenizer puts a blank before the first character of a text; this copy does not."""
    has_normalizer: bool
    """Whether it may change a text before it is split; the rule holds for texts that it leaves alone."""

    def encode(self, text: str) -> Any:  # noqa: ANN401 - tokenizers has no type for it
        """Tokenise. Other threads go on meanwhile: a batch leaves the interpreter to them, a single text would not."""
        return self.tokenizer.encode_batch([text], add_special_tokens=False)[0]

    def is_unchanged(self, text: str) -> bool:
        """Return whether the text is tokenised as it stands."""
        if not self.has_normalizer or text.isascii():
            return True
        changed: str = self.tokenizer.normalizer.normalize_str(text)
        return changed == text


def make_plain(tokenizer: Tokenizer, markers: Collection[str] = ()) -> PlainText:
    """Return the text-only copy of a tokenizer. `markers` are control tokens whatever they look like.

    Raises:
        ConfigError: it is not a byte-pair encoding, of which alone it is known how to take a token out.

    """
    spec = json.loads(tokenizer.to_str())
    if spec["model"].get("type") != "BPE":
        msg = f"the tokenizer is of the kind {spec['model'].get('type')}: only byte-pair encodings can be used"
        raise ConfigError(msg)
    control = {token["content"] for token in spec["added_tokens"] if token["special"] or _is_control(token["content"])}
    control |= set(markers)
    spec["added_tokens"] = [token for token in spec["added_tokens"] if token["content"] not in control]
    spec["post_processor"] = spec["truncation"] = spec["padding"] = None
    _forget(spec["model"], control)
    adds_blank = _drop_blank(spec)
    has_normalizer = any(part["type"] != "Replace" for part in flat(spec["normalizer"], "normalizers"))
    return PlainText(Tokenizer.from_str(json.dumps(spec)), find_rule(spec), adds_blank, has_normalizer)


def _is_control(content: str) -> bool:
    return _CONTROL_LOOK.fullmatch(content) is not None


def _forget(model: dict[str, Any], control: Collection[str]) -> None:
    """Take control tokens out of the vocabulary, and the merges that would make one."""
    names = set(control) - {model.get("unk_token")}
    pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
    model["merges"] = [
        pair
        for pair in pairs
        if "".join(pair) not in control and control.isdisjoint(pair)  # type: ignore[attr-defined]
    ]
    model["vocab"] = {token: index for token, index in model["vocab"].items() if token not in names}


def _drop_blank(spec: dict[str, Any]) -> bool:
    """Take out the parts that put a blank before a text; return whether there were any."""
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
