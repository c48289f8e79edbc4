"""What is completed: texts of the Python standard library, which every machine has, and the server's prompts of them.

The prompts are made in this process, with the server's own prompt library.
"""

import random
import re
import sysconfig
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from completion_server.core.errors import ConfigError
from completion_server.core.request import Caller, Mode, Request
from completion_server.prompt.builder import Prompt, PromptBuilder
from completion_server.prompt.loading import load_prompt_builder
from completion_server.prompt.settings import PromptSettings
from loadtest import LoadTestError

_DEFINITION = re.compile(r"^(?P<indent>[ ]*)def [^\n]*:\n", re.MULTILINE)
_SKIPPED_LINES = 12
"""Lines left out after the cursor: the body that the model is to write."""
_CHARACTERS_PER_KEY = 4


class TooFewTextsError(LoadTestError):
    """There is too little source text; the message says how much there is."""


class CursorText(NamedTuple):
    """A document around a cursor."""

    prefix: str
    suffix: str


def distinct_texts(count: int, *, prefix_chars: int, suffix_chars: int, seed: int) -> list[CursorText]:
    """Return texts of one length with different beginnings, so that no prefix cache can reuse them.

    The cursor is at the start of a function's body, so that completions are long. Raises TooFewTextsError if the
    standard library has too few.
    """
    texts: dict[str, CursorText] = {}
    for text in _bodies(prefix_chars, suffix_chars, random.Random(seed)):
        texts.setdefault(text.prefix[:16], text)
        if len(texts) == count:
            return list(texts.values())
    raise TooFewTextsError(f"the standard library has {len(texts)} places for texts of this size, {count} are wanted")


def typed_texts(documents: int, keys: int, *, prefix_chars: int, suffix_chars: int, seed: int) -> list[CursorText]:
    """Return the texts that editors send while `documents` users make `keys` pauses each in their own documents.

    All first pauses come first, then all second ones, so that a user's earlier text is in the prefix cache.
    """
    room = keys * _CHARACTERS_PER_KEY
    ends = distinct_texts(documents, prefix_chars=prefix_chars + room, suffix_chars=suffix_chars, seed=seed)
    return [
        CursorText(end.prefix[: len(end.prefix) - room + (key + 1) * _CHARACTERS_PER_KEY], end.suffix)
        for key in range(keys)
        for end in ends
    ]


def _bodies(prefix_chars: int, suffix_chars: int, chance: random.Random) -> Iterator[CursorText]:
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    chance.shuffle(files)
    for file in files:
        source = file.read_text(encoding="utf-8", errors="ignore")
        next_start = 0
        for match in _DEFINITION.finditer(source):
            start = match.end() - prefix_chars
            resume = _line_after(source, match.end())
            if start < next_start or resume + suffix_chars > len(source):
                continue
            next_start = match.end()
            prefix = source[start : match.end()] + match.group("indent") + "    "
            yield CursorText(prefix[-prefix_chars:], "\n" + source[resume : resume + suffix_chars - 1])


def _line_after(source: str, position: int) -> int:
    for _ in range(_SKIPPED_LINES):
        found = source.find("\n", position)
        if found < 0:
            return len(source)
        position = found + 1
    return position


class PromptMaker:
    """Builds the prompts of keys typed into documents, as the server would.

    The layout of a prompt depends on the document's last one, so keys must come in the order in which they are typed.
    """

    def __init__(self, model: str, section: Mapping[str, Any]) -> None:
        """Load the tokenizer of `model`; `section` is the server's `[prompt]` section. Raises ConfigError."""
        try:
            settings = PromptSettings(**section)
        except (TypeError, ValueError) as error:
            raise ConfigError(str(error)) from error
        self.builder: PromptBuilder = load_prompt_builder(
            model, max_prompt_tokens=settings.max_prompt_tokens, settings=settings
        )
        self._num_made = 0

    def make(
        self,
        document: str,
        prefix: str,
        suffix: str,
        *,
        session: str = "",
        language_id: str = "",
        mode: Mode = Mode.SINGLE_LINE,
    ) -> tuple[Prompt, float]:
        """Return the prompt of the next key in `document`, and the milliseconds that building it took.

        Raises InvalidRequestError if the text can't be made into a prompt.
        """
        self._num_made += 1
        request = Request(
            id=f"prompt-{self._num_made}",
            caller=Caller(user="benchmark", session=session or document),
            sequence=self._num_made,
            document_uri=document,
            language_id=language_id,
            prefix=prefix,
            suffix=suffix,
            max_tokens=1,
            received_at=0.0,
            mode=mode,
        )
        begun = time.perf_counter()
        prompt = self.builder.build(request)
        return prompt, (time.perf_counter() - begun) * 1000


def prompt_maker(effective: Mapping[str, Any]) -> PromptMaker:
    """Return a maker of the prompts of a server with an effective configuration. Raises ConfigError."""
    section = {**effective["prompt"], "max_prompt_tokens": effective["prompt_budget_tokens"]}
    return PromptMaker(effective["engine"]["model"], section)
