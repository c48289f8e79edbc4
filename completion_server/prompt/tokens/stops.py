"""Finds the tokens at which the engine ends a completion."""

from collections.abc import Mapping

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel

from completion_server.prompt.templates import Template

MAX_NEWLINE_TOKENS = 256
"""A vocabulary may have thousands; the lowest ids are the most frequent, and the text rules handle the others."""

_NEWLINE_BYTE = "<0x0A>"


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
