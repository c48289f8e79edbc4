r"""Rules of where a tokenised text may be cut without changing the tokens on either side.

There are rules for two kinds of tokenizer. Texts of any other tokenizer are tokenised whole.

Scanners. A pre-tokeniser made of regular expressions without look-behind reads from left to right: the word that
starts at an offset depends only on the text from that offset on. So the words from any boundary on can be reused as
long as the text behind it is the same. In the other direction a word depends on a little text behind it: each of the
alternatives listed below looks at most to the end of the blanks that follow and one character more, or two characters
beyond its own end ("'r" may become "'re"). So words are certain up to the start of one that has a character other than
a blank and is followed by two more characters. Words are tokenised independently of one another.

Lines. A byte-pair encoding without a pre-tokeniser merges anywhere, but never across two characters that are adjacent
in no token of the vocabulary. In vocabularies of SentencePiece only a newline follows a newline, so no merge crosses
from one line to the next.
"""

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tokenizers.pre_tokenizers import ByteLevel

_NUM_BYTES = 256

_ALTERNATIVES = frozenset(
    {
        *("'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "(?i:'s|'t|'re|'ve|'m|'ll|'d)", "'(?i:[sdmt]|ll|ve|re)"),
        *(r" ?\p{L}+", r" ?\p{N}+", r" ?[^\s\p{L}\p{N}]+", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}]+[\r\n/]*"),
        *(r"[^\r\n\p{L}\p{N}]?\p{L}+", r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", r"[^\r\n\p{L}\p{N}]?+\p{L}+"),
        *(r"\s*[\r\n]+", r"\s*[\r\n]", r"\s+(?!\S)", r"\s+$", r"\s+"),
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    }
)
"""Known alternatives of regular expressions, each checked against the claim in the module's docstring."""

_ONE_CLASS = re.compile(r"(\\s\?| \?)?(\\p\{\w+\}|\[[^\[\]]+\])(\+|\{1,3\})?")
"""An alternative that matches a run of one class of characters; it looks one character beyond its end."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """A text as tokens, and the offsets at which it may be cut."""

    ids: "array[int]"
    starts: "array[int]"
    """Character offsets at which the text may be cut, ascending from 0; empty for an empty text."""
    firsts: "array[int]"
    """For each offset, the index of the first token from there on."""


class Rule(Protocol):
    """Decides where tokenised text may be cut."""

    def pieces(self, text: str, encoding: Any) -> Pieces:  # noqa: ANN401 - tokenizers has no type for it
        """Return the tokens of `text` with the offsets at which it may be cut."""
        ...

    def num_certain(self, text: str, starts: "array[int]", limit: int) -> int:
        """Return the index in `starts` up to which all cuts stay valid for any text from `limit` on."""
        ...


class ScannerRule:
    """Cuts between words."""

    def pieces(self, text: str, encoding: Any) -> Pieces:  # noqa: ANN401
        """Return the tokens of `text`, which may be cut at the starts of words."""
        starts, firsts = array("I"), array("I")
        offsets = encoding.offsets
        last = None
        for index, word in enumerate(encoding.word_ids):
            if word != last:
                starts.append(offsets[index][0])
                firsts.append(index)
                last = word
        return Pieces(array("I", encoding.ids), starts, firsts)

    def num_certain(self, text: str, starts: "array[int]", limit: int) -> int:
        """Return the start of the last word with a visible character and two more characters before the limit."""
        index = bisect_right(starts, limit) - 1
        end = len(text)
        if index + 1 < len(starts):
            end = starts[index + 1]
        while index > 0:
            start = starts[index]
            if end + 2 <= limit and not text[start:end].isspace():
                return index
            end = start
            index -= 1
        return 0


class LineRule:
    """Cuts between a newline and any character that follows no newline in the vocabulary."""

    def __init__(self, followers: Collection[str]) -> None:
        """`followers` are the characters that follow a newline in a token of the vocabulary."""
        self._followers = frozenset(followers)

    def pieces(self, text: str, encoding: Any) -> Pieces:  # noqa: ANN401
        """Return the tokens of `text`, which may be cut at the starts of lines."""
        token_starts = [start for start, _ in encoding.offsets]
        starts, firsts = array("I"), array("I")
        if text:
            starts.append(0)
            firsts.append(0)
        at = text.find("\n") + 1
        while 0 < at < len(text):
            if text[at] not in self._followers:
                starts.append(at)
                firsts.append(bisect_left(token_starts, at))
            at = text.find("\n", at) + 1
        return Pieces(array("I", encoding.ids), starts, firsts)

    def num_certain(self, text: str, starts: "array[int]", limit: int) -> int:
        """Return the index of the last line whose first character is before the limit."""
        return max(0, bisect_left(starts, limit) - 1)


def find_rule(spec: Mapping[str, Any]) -> Rule | None:
    """Return the rule for a tokenizer, None if none is known; `spec` is its tokenizer.json without control tokens."""
    model = spec["model"]
    if model.get("type") != "BPE" or model.get("dropout"):
        return None
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return None
    if _is_scanner(spec):
        return ScannerRule()
    if _is_without_words(spec):
        followers = _newline_followers(spec)
        if followers is not None and followers <= {"\n"}:
            return LineRule(followers)
    return None


def _is_scanner(spec: Mapping[str, Any]) -> bool:
    if any(part["type"] != "NFC" for part in flat(spec.get("normalizer"), "normalizers")):
        return False
    if not all(_is_one_character(token) for token in spec["added_tokens"]):
        return False
    if not all(byte in spec["model"]["vocab"] for byte in ByteLevel.alphabet()):
        return False
    stages = flat(spec.get("pre_tokenizer"), "pretokenizers")
    return bool(stages) and stages[-1]["type"] == "ByteLevel" and all(_is_local(stage) for stage in stages)


def _is_one_character(token: Mapping[str, Any]) -> bool:
    return len(token["content"]) == 1 and not (token["single_word"] or token["lstrip"] or token["rstrip"])


def _is_local(stage: Mapping[str, Any]) -> bool:
    if stage["type"] == "ByteLevel":
        return stage["add_prefix_space"] is False
    if stage["type"] == "Digits":
        return True
    if stage["type"] != "Split" or (stage["behavior"], stage["invert"]) not in {("Isolated", False), ("Removed", True)}:
        return False
    pattern: str | None = stage["pattern"].get("Regex")
    return pattern is not None and all(
        part in _ALTERNATIVES or _ONE_CLASS.fullmatch(part) for part in _alternatives(pattern)
    )


def _alternatives(pattern: str) -> list[str]:
    """Split a pattern at the bars outside of groups and classes."""
    parts, depth, start = [], 0, 0
    is_class = is_escaped = False
    for at, char in enumerate(pattern):
        if is_escaped:
            is_escaped = False
        elif char == "\\":
            is_escaped = True
        elif is_class:
            is_class = char != "]"
        elif char == "[":
            is_class = True
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char == "|" and depth == 0:
            parts.append(pattern[start:at])
            start = at + 1
    return [*parts, pattern[start:]]


def _is_without_words(spec: Mapping[str, Any]) -> bool:
    if spec["model"].get("ignore_merges"):
        return False
    blanks = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    if any(part != blanks for part in flat(spec.get("normalizer"), "normalizers")):
        return False
    return all(_keeps_lines_whole(stage) for stage in flat(spec.get("pre_tokenizer"), "pretokenizers"))


def _keeps_lines_whole(stage: Mapping[str, Any]) -> bool:
    if stage["type"] == "Metaspace":
        return stage.get("split") is False and stage.get("prepend_scheme") == "never"
    return bool(stage["type"] == "Split" and stage["pattern"] == {"String": " "})


def _newline_followers(spec: Mapping[str, Any]) -> set[str] | None:
    """Return the characters that follow a newline in any token; None if the newline itself can't be tokenised."""
    vocabulary = spec["model"]["vocab"]
    has_bytes = spec["model"].get("byte_fallback") and all(
        f"<0x{byte:02X}>" in vocabulary for byte in range(_NUM_BYTES)
    )
    if "\n" not in vocabulary and not has_bytes:
        return None
    tokens = [*vocabulary, *(token["content"] for token in spec["added_tokens"])]
    if any(token["single_word"] or token["lstrip"] or token["rstrip"] for token in spec["added_tokens"]):
        return None
    return {match for token in tokens for match in re.findall(r"(?<=\n)(?s:.)", token)}


def flat(node: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """Return the parts of a normaliser or pre-tokeniser, whose sequences under `key` may be nested."""
    if node is None:
        return []
    if node["type"] != "Sequence":
        return [node]
    return [part for child in node[key] for part in flat(child, key)]
