"""A model of next edits for the scripted engine, which reads and writes the form of Sweep Next-Edit.

It repeats the window around the cursor, and makes the last change of a word in all its other places there. So a user
who renames a name once is offered the rest.
"""

import re
from collections.abc import Callable, Iterator, Sequence

from completion_server.engine.interface import GenerationRequest
from completion_server.engine.scripted.model import Script, Token

_FILE = "<|file_sep|>"
_CURRENT, _UPDATED, _DIFF = "current/", "updated/", re.compile(r"original:\n(.*?)\nupdated:\n(.*)", re.DOTALL)
_PIECE = re.compile(r"\s*\S{1,6}|\s+")
"""About a token of text."""


def edit_script(decode: Callable[[Sequence[int]], str], otherwise: Script) -> Script:
    """Return a script that writes next edits, and the tokens of another script for any other prompt.

    `decode` returns the text of a prompt's tokens, special ones included.
    """

    def script(request: GenerationRequest) -> Iterator[str | Token]:
        answer = answer_to(decode(request.prompt_token_ids))
        if answer is None:
            yield from otherwise(request)
        else:
            yield from _PIECE.findall(answer)

    return script


def answer_to(prompt: str) -> str | None:
    """Return the answer to a prompt; None if it asks for no next edit."""
    blocks = prompt.split(_FILE)
    if len(blocks) < 3 or not blocks[-1].startswith(_UPDATED) or not blocks[-2].startswith(_CURRENT):  # noqa: PLR2004
        return None
    window = blocks[-2].partition("\n")[2].removesuffix("\n")
    changes = [found for block in blocks if (found := _DIFF.search(block))]
    if changes:
        old, new = _changed_word(changes[-1].group(1), changes[-1].group(2).removesuffix("\n"))
        if old:
            window = re.sub(rf"(?<!\w){re.escape(old)}(?!\w)", lambda _match: new, window)
    return f"\n{window}"


def _changed_word(old: str, new: str) -> tuple[str, str]:
    """Return what differs between two texts, in whole words; "" for the first if words were only added."""
    before, after = re.split(r"(\W)", old), re.split(r"(\W)", new)
    while before and after and before[0] == after[0]:
        del before[0], after[0]
    while before and after and before[-1] == after[-1]:
        del before[-1], after[-1]
    return "".join(before), "".join(after)
