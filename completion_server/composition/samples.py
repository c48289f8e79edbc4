"""Requests of real code for measurements at start: the server's own source, as an editor would send it."""

import random
from collections.abc import Callable
from itertools import count
from pathlib import Path

from completion_server.core.request import Caller, Request
from completion_server.engine.interface import GenerationRequest
from completion_server.prompt.builder import PromptBuilder

_PREFIX_CHARACTERS, _SUFFIX_CHARACTERS = 1500, 400
_KEY_CHARACTERS = 13
"""Characters between two requests: who types fast makes a pause after some of them. Nearer places have the same text to
complete, so that more requests would show no more."""
_MIN_CHARACTERS = 5000
_ORDER = 7


def make_samples(prompts: PromptBuilder, first: int = 0) -> Callable[[int, int, int, str], GenerationRequest]:
    """Return a function that makes a request.

    Its arguments are a document, the number of keys typed into it, a largest number of tokens and a cache salt. The
    documents are in a random order that is the same at each start, from the `first` on; beyond the available ones they
    repeat. No text is remembered for later requests.
    """
    sources = (path.read_text("utf-8") for path in sorted(Path(__file__).parents[1].rglob("*.py")))
    texts = [text for text in sources if len(text) >= _MIN_CHARACTERS]
    random.Random(_ORDER).shuffle(texts)
    numbers = count()

    def make(document: int, num_keys: int, num_tokens: int, cache_salt: str) -> GenerationRequest:
        text = texts[(first + document) % len(texts)]
        num_typed = num_keys * _KEY_CHARACTERS % (len(text) - _PREFIX_CHARACTERS - _SUFFIX_CHARACTERS)
        cursor = _PREFIX_CHARACTERS + num_typed
        request = Request(
            id=f"sample-{next(numbers)}",
            caller=Caller(user="", session=""),
            sequence=0,
            document_uri="",
            language_id="python",
            prefix=text[:cursor],
            suffix=text[cursor : cursor + _SUFFIX_CHARACTERS],
            max_tokens=num_tokens,
            received_at=0.0,
        )
        prompt = prompts.build(request)
        return GenerationRequest(
            request.id, prompt.token_ids, num_tokens, stop_token_ids=prompt.stop_token_ids, cache_salt=cache_salt
        )

    return make
