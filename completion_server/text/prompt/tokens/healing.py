"""Chooses the text that a prompt leaves out at its end, so that it ends where the tokenizer would cut whatever follows.

A prompt that ends inside a word ends in tokens that never stand there in the model's training. So the last token or
tokens are left out, and the engine must begin its answer with exactly their characters.

The rule. Of the word before the cursor, `x`, that some longer text continues, one token crosses the cursor, or ends
there. It begins at an offset `i` at which some token of the vocabulary begins with all of `x[i:]` and goes on. Merges
never cross the start of a token, so the tokens before `i` are those of `x[:i]` alone. Therefore a boundary that the
tokens of all these `x[:i]`, and of `x` itself, have in common is a boundary whatever follows; the last one is taken.

A text that ends in blanks goes on with a visible character, or with more blanks at the start of a line: a completion
that only lengthens a run of blanks is none. So the usual place of a cursor, behind an indentation, costs no further
step. A line break is never left out: an answer of one line would end with it. Everywhere else the rule holds for any
text.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

from completion_server.core.vocabulary import Vocabulary
from completion_server.text.prompt.tokens.boundaries import LineRule
from completion_server.text.prompt.tokens.plaintext import PlainText

MAX_TOKENS = 16
"""Tokens left out at most: a longer word is cut at its last token, since each further one takes a step."""

_REACH = 256
"""Characters before the cursor that are looked at."""
_VISIBLE = ("a", "(", "1")
_MORE_BLANKS = "  a"
_REMEMBERED = 4096


class Healer:
    """Cuts the ends of texts for one tokenizer. May be used from several threads."""

    def __init__(self, plain: PlainText, tokens: Mapping[int, bytes]) -> None:
        """Cut where `plain` does; `tokens` has the bytes of each token of text."""
        self._plain = plain
        self._tokens = tokens
        self._vocabulary = Vocabulary(tokens)
        self._is_word_whole_line = plain.rule is None or isinstance(plain.rule, LineRule)
        self._end_of = lru_cache(_REMEMBERED)(self._find_end)

    def left_out(self, text: str) -> tuple[str, int]:
        """Return the end of `text` that a prompt leaves out, "" for nothing, and how many tokens that has."""
        text = text[-2 * _REACH :]
        region = text[self._region_start(text) :]
        return self._end_of(region) if region else ("", 0)

    def _region_start(self, text: str) -> int:
        """Return an offset before the last word that is a boundary of words, whatever follows the text.

        It is the last one that is easy to find: no word goes from a visible character to a blank.
        """
        if self._is_word_whole_line:
            return max(text.rfind("\n") + 1, len(text) - _REACH)
        end = len(text.rstrip())
        least = max(0, end - _REACH)
        for at in range(end - 1, least, -1):
            if text[at] in " \t" and not text[at - 1].isspace():
                return at
        return least

    def _find_end(self, region: str) -> tuple[str, int]:
        """Return the end of the region that is left out, and its tokens."""
        if not self._plain.is_unchanged(region):
            return "", 0
        if self._is_word_whole_line:
            cuts = self._cuts(region)
        elif region[-1].isspace():
            cuts = self._word_cuts(region)
        else:
            offsets, words = self._encoding(region)
            first = next(at for at, word in enumerate(words) if word == words[-1])
            word = int(offsets[first][0])
            cuts = {0, word} | {word + at for at in self._cuts(region[word:])}
        cut = next(at for at in sorted(cuts, reverse=True) if self._keeps_tokens(region, at))
        left_out = region[cut:].rpartition("\n")[2]
        encoding = self._plain.encode(left_out)
        if b"".join(self._tokens.get(index, b"") for index in encoding.ids) != left_out.encode():
            return "", 0  # no tokens say it
        if len(encoding.ids) <= MAX_TOKENS:
            return left_out, len(encoding.ids)
        return left_out[int(encoding.offsets[-1][0]) :], 1

    def _word_cuts(self, region: str) -> set[int]:
        """Return the boundaries of words in a region that ends in blanks, whatever visible text follows."""
        ends = _VISIBLE if region[-1] != "\n" else (*_VISIBLE, _MORE_BLANKS)
        return set.intersection(*(self._word_starts(region + end) for end in ends)) | {0}

    def _word_starts(self, text: str) -> set[int]:
        offsets, words = self._encoding(text)
        return {int(offsets[at][0]) for at in range(len(words)) if at == 0 or words[at] != words[at - 1]}

    def _cuts(self, word: str) -> set[int]:
        """Return the boundaries of a word's tokens that any continuation has."""
        text = word.encode()
        if self._vocabulary.extends(text):
            return {0}
        first = max(1, len(word) - self._vocabulary.longest)
        begins = [at for at in range(first, len(word)) if self._vocabulary.extends(word[at:].encode())]
        texts = [word, *(word[:at] for at in begins)]
        # One by one: a batch of short texts takes more time to share between threads than to tokenise.
        return set.intersection(*(_boundaries(text, self._plain.encode(text).offsets) for text in texts))

    def _keeps_tokens(self, region: str, cut: int) -> bool:
        """Return whether the text before the cut has the tokens that it has in front of more text.

        A run of blanks has others at the end of a text.
        """
        if cut == 0:
            return True
        kept = self._plain.encode(region[:cut]).ids
        ahead = region + _VISIBLE[0] if region[-1].isspace() else region
        return bool(self._plain.encode(ahead).ids[: len(kept)] == kept)

    def _encoding(self, text: str) -> tuple[Any, Any]:
        encoding = self._plain.encode(text)
        return encoding.offsets, encoding.word_ids


def _boundaries(text: str, offsets: Sequence[tuple[int, int]]) -> set[int]:
    """Return where the tokens of a text begin and where the last one ends; not inside of a character."""
    return {0, len(text)} | {start for (_, before), (start, _) in pairwise(offsets) if before == start}
