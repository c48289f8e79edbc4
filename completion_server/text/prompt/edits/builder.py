"""Builds prompts for next edits, and reads what the model answers."""

from collections.abc import Sequence

from tokenizers import Tokenizer

from completion_server.core.errors import ConfigError, InvalidRequestError
from completion_server.core.request import Request
from completion_server.text.prompt.builder import Prompt, begin_ids
from completion_server.text.prompt.edits.answers import EditAnswer
from completion_server.text.prompt.edits.region import Region, find_region
from completion_server.text.prompt.edits.template import EditTemplate, Marker, Part, num_characters_of
from completion_server.text.prompt.edits.view import candidates_of, fit
from completion_server.text.prompt.layout import CHARACTERS_A_TOKEN
from completion_server.text.prompt.tokens.plaintext import make_plain

_MIN_PROMPT_TOKENS = 128
_REGION_SHARE = 1 / 3
"""Largest share of the budget for the lines that may change; some prompts show them twice."""
_CHARACTERS_A_TOKEN = 3
"""Estimate for the texts of a prompt. Where there are fewer, the prompt is built again with less."""
_MAX_TURNS = 6
"""Times that a prompt is built; the last one has the region alone."""


class EditPrompts:
    """The prompts and answers of a model that writes next edits. May be used from several threads at once."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: EditTemplate,
        *,
        max_prompt_tokens: int,
    ) -> None:
        """Prepare a tokenizer, which has the template's markers, for prompts of at most `max_prompt_tokens`.

        Raises:
            ConfigError: the tokenizer can't be used, or the budget is too small.

        """
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self.template = template
        """The format in use."""
        self._plain = make_plain(tokenizer, template.markers)
        self._ids = {marker: vocabulary[marker] for marker in template.markers}
        self._begin = begin_ids(tokenizer)
        self._budget = max_prompt_tokens - len(self._begin)
        if self._budget < _MIN_PROMPT_TOKENS:
            msg = f"a prompt of {max_prompt_tokens} tokens has too little room for a next edit"
            raise ConfigError(msg)
        ends = {vocabulary.get(token) for token in (*template.markers, *template.ends)}
        self._ends = tuple(sorted(index for index in ends if index is not None))

    def answer(self, request: Request) -> EditAnswer | None:
        """Return what reads the answer to a request; None if there is nothing that the model may change."""
        assert request.next_edit is not None
        region = self._region(request)
        return None if region is None else EditAnswer(self.template, region, request.next_edit.document_version)

    def build(self, request: Request) -> Prompt:
        """Return the prompt of a request.

        Raises:
            InvalidRequestError: the lines that may change don't fit.

        """
        region = self._region(request)
        assert region is not None, "a request without a region needs no prompt"
        candidates = candidates_of(request, region, self.template)
        num_characters = self._budget * _CHARACTERS_A_TOKEN
        for turn in range(1, _MAX_TURNS + 1):
            parts = self.template.render(fit(candidates, self.template, num_characters))
            ids = self._encode(parts)
            if len(ids) <= self._budget:
                return Prompt(self._begin + ids, self._ends, len(ids), len(ids))
            shown = min(num_characters, num_characters_of(parts))
            num_characters = shown * self._budget // len(ids) if turn < _MAX_TURNS - 1 else 0
        limit = f"the lines around the cursor may have {self._budget} tokens with the marks around them"
        raise InvalidRequestError("prefix", f"{limit}, and have {len(ids)}")

    def expected_new_tokens(self, request: Request) -> int:
        """Estimate how many prompt tokens of a request the engine's prefix cache lacks, without tokenising."""
        assert request.next_edit is not None
        texts = (*(each.diff for each in request.next_edit.recent_edits), *(each.text for each in request.snippets))
        num_characters = len(request.prefix) + len(request.suffix) + sum(map(len, texts))
        return min(self._budget, num_characters // CHARACTERS_A_TOKEN)

    def _region(self, request: Request) -> Region | None:
        num_tokens = min(request.max_tokens, int(self._budget * _REGION_SHARE))
        return find_region(request, self.template.reach, self.template.reserved, num_tokens)

    def _encode(self, parts: Sequence[Part]) -> list[int]:
        ids: list[int] = []
        text = ""
        for part in (*parts, Marker("")):
            if isinstance(part, str):
                text += part
                continue
            ids += self._plain.encode(text).ids if text else []
            text = ""
            ids += [self._ids[part.text]] if part.text else []
        return ids
