"""The tokens of a vocabulary by their bytes: which tokens can go on with a given text.

Reads tokenizer.json as data, so it needs no tokenizer; the prompt and the engine's own process both use it.
"""

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from typing import Any

_CONTROL_LOOK = re.compile(r"\s*▁?[<\[].*[>\]]\s*", re.DOTALL)
"""Some vocabularies hold markers, such as Qwen's <|fim_prefix|>, as ordinary added tokens; they are found by form."""
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class Vocabulary:
    """The tokens of text, sorted by their bytes. Immutable."""

    def __init__(self, tokens: Mapping[int, bytes]) -> None:
        """Take the bytes of each token by its id."""
        ordered = sorted((text, index) for index, text in tokens.items() if text)
        self._texts = [text for text, _index in ordered]
        self._ids = array("I", [index for _text, index in ordered])
        self.longest = max(map(len, self._texts), default=0)
        """Bytes of the longest token."""

    def starting_with(self, start: bytes) -> "array[int]":
        """Return the ids of the tokens that begin with `start`, itself included."""
        return self._ids[bisect_left(self._texts, start) : self._end_of(start)]

    def extends(self, start: bytes) -> bool:
        """Return whether a token begins with `start` and goes on."""
        return bisect_right(self._texts, start) < self._end_of(start)

    def beginnings_of(self, text: bytes) -> "array[int]":
        """Return the ids of the tokens that `text` begins with, itself included."""
        found = array("I")
        for end in range(1, len(text) + 1):
            start = text[:end]
            at = bisect_left(self._texts, start)
            while at < len(self._texts) and self._texts[at] == start:
                found.append(self._ids[at])
                at += 1
        return found

    def _end_of(self, start: bytes) -> int:
        """Return the index behind the last token that begins with `start`."""
        last = start.rstrip(b"\xff")
        return bisect_left(self._texts, last[:-1] + bytes([last[-1] + 1])) if last else len(self._texts)


def is_control(token: Mapping[str, Any]) -> bool:
    """Return whether an added token, as tokenizer.json has it, controls the model instead of being text."""
    return bool(token["special"]) or _CONTROL_LOOK.fullmatch(token["content"]) is not None


def text_tokens(spec: Mapping[str, Any]) -> dict[int, bytes]:
    """Return the bytes of each token of text by its id; `spec` is a tokenizer.json of a byte-pair encoding.

    Raises:
        ValueError: it is of another kind.

    """
    if not isinstance(spec["model"]["vocab"], Mapping):
        msg = f"the tokenizer is of the kind {spec['model'].get('type')}, not a byte-pair encoding"
        raise ValueError(msg)
    control = {token["content"] for token in spec["added_tokens"] if is_control(token)}
    added = {token["content"]: token["id"] for token in spec["added_tokens"]}
    names = {name: index for name, index in spec["model"]["vocab"].items() if name not in control | set(added)}
    to_bytes = _from_letters if _is_byte_level(spec) else _from_pieces
    tokens = {index: to_bytes(name) for name, index in names.items()}
    return tokens | {index: name.encode() for name, index in added.items() if name not in control}


def _is_byte_level(spec: Mapping[str, Any]) -> bool:
    return any(part["type"] == "ByteLevel" for key in ("decoder", "pre_tokenizer") for part in _parts(spec.get(key)))


def _parts(node: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    if node is None:
        return
    yield node
    for children in node.values():
        for child in children if isinstance(children, list) else ():
            yield from _parts(child if isinstance(child, dict) else None)


def _letters() -> dict[str, int]:
    """Return the byte of each letter in byte-level vocabularies (GPT-2): printable bytes are themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + at): byte for at, byte in enumerate(others)}


_LETTERS = _letters()


def _from_letters(name: str) -> bytes:
    return bytes(_LETTERS[letter] for letter in name) if all(letter in _LETTERS for letter in name) else name.encode()


def _from_pieces(name: str) -> bytes:
    """Return the bytes of a piece of SentencePiece: ▁ is a blank, and <0x0A> one byte."""
    byte = _BYTE_TOKEN.fullmatch(name)
    return bytes([int(byte.group(1), 16)]) if byte else name.replace("▁", " ").encode()
