"""Prompts of real code for measurements at start: the server's own source, as an editor would send it."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

from completion_server.core.request import Caller, Request
from completion_server.prompt.builder import PromptBuilder

_PREFIX_CHARACTERS, _SUFFIX_CHARACTERS = 1500, 400
_KEY_CHARACTERS = 3
_MIN_CHARACTERS = 3000


def make_sample_prompts(prompts: PromptBuilder) -> Callable[[int, int], list[int]]:
    """Return a function from a document and a number of keys typed into it to a prompt.

    Documents beyond the available ones repeat. No text is remembered for later requests.
    """
    sources = (path.read_text("utf-8") for path in sorted(Path(__file__).parent.rglob("*.py")))
    texts = [text for text in sources if len(text) >= _MIN_CHARACTERS]
    numbers = count()

    def make(document: int, num_keys: int) -> list[int]:
        text = texts[document % len(texts)]
        begin = len(text) // 2
        cursor = begin + num_keys * _KEY_CHARACTERS
        request = Request(
            id=f"sample-{next(numbers)}",
            caller=Caller(user="", session=""),
            sequence=0,
            document_uri="",
            language_id="python",
            prefix=text[max(0, begin - _PREFIX_CHARACTERS) : cursor],
            suffix=text[cursor : cursor + _SUFFIX_CHARACTERS],
            max_tokens=1,
            received_at=0.0,
        )
        return prompts.build(request).token_ids

    return make
