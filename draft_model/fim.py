"""The fill-in-the-middle split and its layout: what the model is shown is what the server will ask.

The layout of a prompt, and of a training sample up to the last two parts:

    <|fim_prefix|> before <|fim_suffix|> after <|fim_middle|> typed | completion <|endoftext|>

`before` is whole lines, `typed` is the cursor's line left of the cursor, `after` starts right of the cursor. The cursor
cuts words anywhere, so each of the four texts is tokenised on its own: the server sees `typed` before `completion`
exists.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

EMPTY_AFTER_SHARE = 0.2
CUT_AFTER_SHARE = 0.3
BLOCK_SHARE = 0.3
INSIDE_LINE_SHARE = 0.4
CLOSERS_LEFT_SHARE = 0.7
MAX_BLOCK_LINES = 10
MAX_COMPLETION_CHARS = 480
CLOSERS = ")]}'\":,"


class TextEncoder(Protocol):
    """What the layout needs of a tokenizer."""

    end: int
    prefix: int
    suffix: int
    middle: int

    def encode(self, text: str) -> list[int]:
        """Token ids of one text, tokenised on its own."""
        ...


@dataclass(frozen=True)
class Split:
    """A text cut at a cursor: `before + typed + completion + after` is the text, or its beginning if `after` is cut."""

    before: str
    typed: str
    completion: str
    after: str


def encode_prompt(encoder: TextEncoder, before: str, typed: str, after: str) -> list[int]:
    """Token ids of the prompt that asks for what stands between `typed` and `after`."""
    return [
        encoder.prefix, *encoder.encode(before), encoder.suffix, *encoder.encode(after),
        encoder.middle, *encoder.encode(typed),
    ]  # fmt: skip


def encode_split(encoder: TextEncoder, split: Split) -> tuple[list[int], int]:
    """Token ids of a training sample and the index of the completion's first token in them."""
    prompt = encode_prompt(encoder, split.before, split.typed, split.after)
    return [*prompt, *encoder.encode(split.completion), encoder.end], len(prompt)


def split_at_random(text: str, rng: Random) -> Split:
    """Cut `text` at a cursor drawn uniformly over the characters of its lines with content, and choose where to stop.

    The completion runs to the end of the line, to the end of the block, or stops inside the line before what an editor
    would already have inserted. What follows is kept whole, cut at a line end, or empty as in a file that is being
    appended to. Raises ValueError when the text is blank.
    """
    cursor = _draw_cursor(text, rng)
    line_start = text.rfind("\n", 0, cursor) + 1
    line_end = _line_end(text, cursor)
    draw = rng.random()
    if draw < BLOCK_SHARE:
        stop = block_end(text, line_start, rng.randint(2, MAX_BLOCK_LINES))
    elif draw < BLOCK_SHARE + INSIDE_LINE_SHARE:
        stop = _stop_inside_line(text, cursor, line_end, rng)
    else:
        stop = line_end
    stop = min(max(stop, cursor), len(text), cursor + MAX_COMPLETION_CHARS)
    after = _draw_after(text, stop, rng)
    return Split(text[:line_start], text[line_start:cursor], text[cursor:stop], after)


def _draw_cursor(text: str, rng: Random) -> int:
    """An offset on a line with content, at or right of where the content starts, or at the start of the line."""
    if not text.strip():
        raise ValueError("a blank text has no place to complete")
    while True:
        cursor = rng.randrange(len(text))
        line_start = text.rfind("\n", 0, cursor) + 1
        line = text[line_start : _line_end(text, cursor)]
        content = len(line) - len(line.lstrip())
        if line.strip() and (cursor - line_start >= content or rng.random() < 1 / (content + 1)):
            return cursor


def block_end(text: str, line_start: int, max_lines: int) -> int:
    """The offset behind the last line, less its newline, of the block that the line at `line_start` opens or continues.

    The block ends before the first line that is indented less than the first line, and after `max_lines` lines; blank
    lines at its end don't count.
    """
    end = _line_end(text, line_start)
    indent = _indent(text[line_start:end])
    next_start, num_lines = end + 1, 1
    while next_start < len(text) and num_lines < max_lines:
        next_end = _line_end(text, next_start)
        line = text[next_start:next_end]
        if line.strip():
            if _indent(line) < indent or (indent == 0 and _indent(line) == 0):
                break
            end = next_end
        num_lines += 1
        next_start = next_end + 1
    return end


def _stop_inside_line(text: str, cursor: int, line_end: int, rng: Random) -> int:
    """Before the closing characters that end the line, which the editor has inserted already, or at a random place."""
    end = line_end
    while end > cursor and text[end - 1] in CLOSERS:
        end -= 1
    if end < line_end and rng.random() < CLOSERS_LEFT_SHARE:
        return rng.randint(end, line_end - 1)
    return rng.randint(cursor, line_end)


def _draw_after(text: str, stop: int, rng: Random) -> str:
    draw = rng.random()
    if draw < EMPTY_AFTER_SHARE:
        return ""
    if draw < CUT_AFTER_SHARE + EMPTY_AFTER_SHARE:
        lines = text[stop:].splitlines(keepends=True)
        return "".join(lines[: rng.randint(1, max(1, len(lines)))])
    return text[stop:]


def ragged_pieces(text: str, rng: Random, mean_chars: int) -> Sequence[str]:
    """Cut plain text at random characters, `mean_chars` apart on average, so that words are seen cut everywhere."""
    pieces, start = [], 0
    while start < len(text):
        length = 1 + int(rng.expovariate(1 / mean_chars))
        pieces.append(text[start : start + length])
        start += length
    return pieces


def _line_end(text: str, offset: int) -> int:
    end = text.find("\n", offset)
    return len(text) if end < 0 else end


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))
