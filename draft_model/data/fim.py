"""Splits texts for fill-in-the-middle: at a cursor, with the text to complete and the text around it.

`before` is whole lines, `typed` ends at the cursor, `completion` starts there, `after` follows it. The cursor cuts
words anywhere, so each of the four texts is tokenised on its own: the server sees `typed` before `completion` exists.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from draft_model.data.encoder import TemplateEncoder
from draft_model.data.snippets import NO_CONTEXT, PromptContext

EMPTY_AFTER_SHARE = 0.15
CUT_AFTER_SHARE = 0.25
BLOCK_SHARE = 0.2
INSIDE_LINE_SHARE = 0.25
"""The rest, more than half, ends with the line: the most frequent request to the server."""
CLOSERS_LEFT_SHARE = 0.7
WORD_SHARE = 0.35
LINE_START_SHARE = 0.25
RECENT_LINES = 6
MAX_BLOCK_LINES = 10
MAX_COMPLETION_CHARS = 480
MAX_TRIES = 200
CLOSERS = ")]}'\":,"


@dataclass(frozen=True)
class Split:
    """A text cut at a cursor: `before + typed + completion + after` is the text, or its beginning if `after` is cut."""

    before: str
    typed: str
    completion: str
    after: str
    is_whole: bool = True
    """Whether the completion is complete; the sample of a completion that was cut off has no end token."""


def encode_split(encoder: TemplateEncoder, split: Split, context: PromptContext = NO_CONTEXT) -> tuple[list[int], int]:
    """Token ids of a training sample and the index of the completion's first token in them."""
    prompt = encoder.encode_prompt(split.before, split.typed, split.after, context)
    end = [encoder.end] if split.is_whole else []
    return [*prompt, *encoder.encode(split.completion), *end], len(prompt)


def narrow(split: Split, num_chars: int) -> Split:
    """Shorten `before` and `after` in proportion, by whole lines, so that the split has at most `num_chars`.

    `typed` and the completion are kept whole, and may be longer.
    """
    around = len(split.before) + len(split.after)
    spare = max(0, num_chars - len(split.typed) - len(split.completion))
    if around <= spare:
        return split
    cut = len(split.before) - len(split.before) * spare // around
    before = split.before[split.before.find("\n", cut - 1) + 1 :] if cut else split.before
    after = split.after[: split.after.rfind("\n", 0, len(split.after) * spare // around) + 1]
    return replace(split, before=before, after=after)


def split_at_random(text: str, rng: Random, *, is_typed_line_only: bool = True) -> Split:
    """Cut `text` at a cursor drawn by `draw_cursor`, and choose where to stop.

    The completion runs to the end of the line, to the end of the block, or stops inside the line before brackets that
    an editor would have inserted. The text behind it is whole, cut at a line end, or empty as at the end of a file.
    If the template allows finished lines behind the middle marker, half of the splits have up to `RECENT_LINES` there.
    Raises ValueError when the text is blank.
    """
    cursor = draw_cursor(text, rng)
    line_start = text.rfind("\n", 0, cursor) + 1
    line_end = _line_end(text, cursor)
    draw = rng.random()
    if draw < BLOCK_SHARE:
        stop = block_end(text, line_start, rng.randint(2, MAX_BLOCK_LINES))
    elif draw < BLOCK_SHARE + INSIDE_LINE_SHARE:
        stop = _stop_inside_line(text, cursor, line_end, rng)
    else:
        stop = line_end
    meant = min(max(stop, cursor), len(text))
    stop = min(meant, cursor + MAX_COMPLETION_CHARS)
    after = _draw_after(text, stop, rng)
    marker = (
        line_start
        if is_typed_line_only
        else _lines_up(text, line_start, max(0, rng.randint(-RECENT_LINES, RECENT_LINES)))
    )
    return Split(text[:marker], text[marker:cursor], text[cursor:stop], after, is_whole=stop == meant)


def draw_cursor(text: str, rng: Random) -> int:
    """An offset on a line with content: inside a word, where the line or its content starts, or on any character."""
    if not text.strip():
        raise ValueError("a blank text has no place to complete")
    draw = rng.random()
    for _ in range(MAX_TRIES):
        cursor = rng.randrange(len(text))
        line_start = text.rfind("\n", 0, cursor) + 1
        line = text[line_start : _line_end(text, cursor)]
        content = line_start + len(line) - len(line.lstrip())
        if not line.strip():
            continue
        if draw < LINE_START_SHARE:
            return line_start if draw < LINE_START_SHARE / 2 else content
        if cursor < content or (draw < LINE_START_SHARE + WORD_SHARE and not _is_inside_word(text, cursor)):
            continue
        return cursor
    return len(text) - len(text.lstrip())


def _is_inside_word(text: str, cursor: int) -> bool:
    return cursor > 0 and all(char.isalnum() or char == "_" for char in text[cursor - 1 : cursor + 1])


def _lines_up(text: str, line_start: int, num_lines: int) -> int:
    for _ in range(num_lines):
        line_start = text.rfind("\n", 0, max(0, line_start - 1)) + 1
    return line_start


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
    """Stop before the closing characters at the end of the line, which an editor inserts, or at a random place."""
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
    return len(line[: len(line) - len(line.lstrip(" \t"))].expandtabs())
