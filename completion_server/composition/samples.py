"""Requests of real code for measurements at start: the server's own source, as an editor would send it."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

from completion_server.core.request import Caller, Request
from completion_server.engine.interface import GenerationRequest
from completion_server.prompt.builder import PromptBuilder

_PREFIX_CHARACTERS, _SUFFIX_CHARACTERS = 1500, 400
_KEY_CHARACTERS = 3
_MIN_CHARACTERS = 3000


def make_samples(prompts: PromptBuilder) -> Callable[[int, int, int], GenerationRequest]:
    """Return a function from a document, the keys typed into it, and a largest number of tokens, to a request.

    Documents beyond the available ones repeat. No text is remembered for later requests.
    """
    sources = (path.read_text("utf-8") for path in sorted(Path(__file__).parents[1].rglob("*.py")))
    texts = [text for text in sources if len(text) >= _MIN_CHARACTERS]
    numbers = count()

    def make(document: int, num_keys: int, num_tokens: int) -> GenerationRequest:
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
            max_tokens=num_tokens,
            received_at=0.0,
        )
        prompt = prompts.build(request)
        return GenerationRequest(
            request.id, prompt.token_ids, num_tokens, stop_token_ids=prompt.stop_token_ids, cache_salt="sample"
        )

    return make
