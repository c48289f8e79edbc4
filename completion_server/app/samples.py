"""Measures at start which K pays, with requests of real code: the server's own source, as an editor would send it."""

import random
from collections.abc import Callable
from itertools import count
from pathlib import Path

from completion_server.config import Config
from completion_server.core.clock import Clock
from completion_server.core.request import Caller, Request
from completion_server.engine.interface import GenerationRequest
from completion_server.engine.speculation.live import LiveSpeculation
from completion_server.engine.speculation.trial import run_trial
from completion_server.engine.supervisor import SupervisedEngine
from completion_server.text.prompt.builder import PromptBuilder

_PREFIX_CHARACTERS, _SUFFIX_CHARACTERS = 1500, 400
_KEY_CHARACTERS = 13
"""Characters between two requests: who types fast makes a pause after some of them. Nearer places have the same text to
complete, so that more requests would show no more."""
_MIN_CHARACTERS = 5000
_ORDER = 7


async def begin_speculation(
    config: Config, engine: SupervisedEngine, speculation: LiveSpeculation, prompts: PromptBuilder, clock: Clock
) -> str:
    """Begin with the configured K or, in mode "auto" without a schedule, with what pays; return a line about it."""
    settings, control, choice = config.speculation, engine.speculation, None
    if settings.mode == "auto" and not settings.schedule and config.engine.warm_up and control is not None:
        step_timeout_s = config.engine.step_timeout_s
        choice = await run_trial(engine.current, control, make_samples(prompts), clock, step_timeout_s)
    speculation.begin(choice)
    active = speculation.active
    if not engine.info.draft_model:
        return ""
    if choice is None:
        return f"{active.mode.value} {active.schedule.as_lists()}"
    return f"auto, {'off' if choice.is_off else f'from {active.schedule.as_lists()}'}: {choice.reason}"


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
            suffix=text[-_SUFFIX_CHARACTERS:],  # it stays while a user types, as the prefix cache expects
            max_tokens=num_tokens,
            received_at=0.0,
        )
        prompt = prompts.build(request)
        return GenerationRequest(
            request.id, prompt.token_ids, num_tokens, stop_token_ids=prompt.stop_token_ids, cache_salt=cache_salt
        )

    return make
