"""Token healing: the last word of a prompt is left out, and the model has to write it again.

A prompt that ends within a word ends with a token that the model has rarely seen there. So the last word is left out of
the prompt (`left_out`), and the first tokens may only be those whose text goes on with it.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

LEFT_OUT = "left_out"
"""The name of the text in a request's `extra_args`."""


def left_out(typed: str, tokenizer: Any) -> str:  # noqa: ANN401 - transformers is untyped
    """Return the end of a line that is left out of the prompt: its last word, as the tokenizer splits text into words.

    It is the last token where the tokenizer splits no words, and "" if it has characters of several tokens' bytes.
    """
    splitter = tokenizer.backend_tokenizer.pre_tokenizer
    words = splitter.pre_tokenize_str(typed) if splitter else []
    spans = [span for _, span in words] if words else tokenizer(typed, return_offsets_mapping=True)["offset_mapping"]
    found = typed[spans[-1][0] :] if spans else ""
    return found if found.isascii() else ""


class TokenTexts:
    """The texts of a vocabulary's tokens."""

    def __init__(self, texts: Sequence[str]) -> None:
        """Sort them. `texts` has "" for the tokens that may not be chosen."""
        self.texts = texts
        self._sorted = sorted((text, token) for token, text in enumerate(texts) if text)
        self._ids: dict[str, list[int]] = {}
        for text, token in self._sorted:
            self._ids.setdefault(text, []).append(token)

    def continuing(self, rest: str) -> list[int]:
        """Return the tokens that are a beginning of `rest`, or begin with it."""
        shorter = [token for end in range(1, len(rest)) for token in self._ids.get(rest[:end], ())]
        longer = takewhile(lambda each: each[0].startswith(rest), self._sorted[bisect_left(self._sorted, (rest,)) :])
        return [*shorter, *(token for _, token in longer)]
