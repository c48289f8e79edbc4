"""Builds prompts from requests. Text that is unchanged since the document's last request keeps its place and tokens."""

import json
from array import array
from dataclasses import replace

from tokenizers import Tokenizer

from completion_server.core.errors import ConfigError
from completion_server.core.immutable import immutable
from completion_server.core.request import Mode, Request
from completion_server.core.vocabulary import text_tokens
from completion_server.text.prompt.layout import CHARACTERS_A_TOKEN, Documents, Layout, LayoutContext
from completion_server.text.prompt.layout_builder import LayoutBuilder
from completion_server.text.prompt.settings import PromptSettings
from completion_server.text.prompt.snippets import SnippetRenderer
from completion_server.text.prompt.templates import FimOrder, Template
from completion_server.text.prompt.tokens.healing import Healer
from completion_server.text.prompt.tokens.plaintext import end_token_ids, make_plain, newline_token_ids
from completion_server.text.prompt.tokens.reuse import Encoder, common_prefix

MIB = 1024 * 1024

_LEAST_SHARE = 0.5
"""Share of the budget that must be left for the request's own text."""


@immutable
class Prompt:
    """The input of one generation."""

    token_ids: list[int]
    stop_token_ids: tuple[int, ...]
    """Tokens that end the completion besides the model's own end token: markers, and newlines in single-line mode."""
    num_tokenised: int
    """Tokens that were computed for this request; the others are reused from the document's last one."""
    num_new_tokens: int
    """Tokens from the first one on that differs from the document's last prompt. A prefix cache that holds that prompt
    lacks these tokens."""
    begins_with: str = ""
    """Text left of the cursor that the prompt leaves out: the answer must begin with it."""
    num_left_out: int = 0
    """The tokens of that text."""


class PromptBuilder:
    """Builds the prompts of one model. May be used from several threads at once."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: Template,
        *,
        max_prompt_tokens: int,
        settings: PromptSettings | None = None,
    ) -> None:
        """Prepare a tokenizer for a template. `max_prompt_tokens` is the budget of the whole prompt.

        Raises:
            ConfigError: the tokenizer can't be used, or the markers and the preamble leave too little of the budget.

        """
        settings = settings or PromptSettings()
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        plain = make_plain(tokenizer, template.markers)
        text_vocabulary = plain.tokenizer.get_vocab()
        self.template = template
        """The format in use."""
        self._encoder = Encoder(plain)
        self._ids = {marker: vocabulary[marker] for marker in template.markers}
        self._begin = begin_ids(tokenizer)
        opening = " " if plain.adds_blank else ""
        if template.order is FimOrder.PREFIX_ONLY:  # No marker separates the preamble from the text.
            opening += settings.preamble
        elif settings.preamble:
            self._begin += self._encode(opening + settings.preamble)
        self._context = LayoutContext(
            encoder=self._encoder,
            template=template,
            settings=settings,
            renderer=SnippetRenderer(template, self._ids.get(template.file)),
            budget=self._text_budget(max_prompt_tokens, opening),
            longest_token=max(len(token) for token in text_vocabulary),
            opening=opening,
        )
        self.documents = Documents(settings.documents_mib * MIB)
        self._healer: Healer | None = None
        if settings.token_healing:
            self._healer = Healer(plain, text_tokens(json.loads(plain.tokenizer.to_str())))
        self._ends = end_token_ids(template, vocabulary)
        self._line_ends = tuple(dict.fromkeys((*newline_token_ids(tokenizer, text_vocabulary), *self._ends)))

    def _encode(self, text: str) -> list[int]:
        return self._encoder.encode(text)[0].ids.tolist()

    def _text_budget(self, max_prompt_tokens: int, opening: str) -> int:
        """Return the tokens for text, `opening` included: all but the bos token, the preamble and the markers."""
        template = self.template
        num_markers = sum(1 for marker in (template.prefix, template.suffix, template.middle) if marker)
        budget = max_prompt_tokens - len(self._begin) - num_markers
        if budget - len(self._encode(opening)) < max_prompt_tokens * _LEAST_SHARE:
            msg = f"a prompt of {max_prompt_tokens} tokens has too little room beside the markers and the preamble"
            raise ConfigError(msg)
        return budget

    def limit(self, max_prompt_tokens: int) -> None:
        """Make the budget of later prompts smaller."""
        budget = min(self._context.budget, self._text_budget(max_prompt_tokens, self._context.opening))
        self._context = replace(self._context, budget=budget)

    @property
    def can_reuse_tokens(self) -> bool:
        """Whether tokens can be reused within a part of the prompt that changed; depends on the kind of tokenizer."""
        return self._encoder.can_reuse

    def build(self, request: Request) -> Prompt:
        """Return the prompt of a request.

        Raises:
            InvalidRequestError: the line being typed alone does not fit.

        """
        left_out, num_left_out = self._healer.left_out(request.prefix) if self._healer else ("", 0)
        old = self.documents.get(request)
        prefix = request.prefix.removesuffix(left_out)
        layout_builder = LayoutBuilder(self._context, request, prefix, old)
        layout = layout_builder.build()
        self.documents.put(request, layout)
        stops = self._line_ends if request.mode is Mode.SINGLE_LINE else self._ends
        token_ids = self._token_ids(layout)
        num_new = len(token_ids) - (self._num_shared(old, layout) if old else 0)
        return Prompt(token_ids, stops, layout_builder.num_tokenised, num_new, left_out, num_left_out)

    def expected_new_tokens(self, request: Request) -> int:
        """Estimate how many prompt tokens of a request the engine's prefix cache lacks, without tokenising.

        Only the text that was typed is new if the request still contains the window of the document's last prompt.
        """
        layout = self.documents.get(request)
        if layout is not None and (shared := layout.num_shared(request)) is not None:
            return (len(request.prefix) - shared) // CHARACTERS_A_TOKEN
        snippets = sum(len(snippet.text) for snippet in request.snippets)
        num_characters = len(request.prefix) + len(request.suffix) + snippets
        return min(self._context.budget, num_characters // CHARACTERS_A_TOKEN)

    def _parts(self, layout: Layout) -> "tuple[array[int], ...]":
        """Return the tokens of a layout's parts in the prompt's order, without markers."""
        before, after = layout.prefix.ids, layout.suffix.ids
        middle = (before, after) if self.template.order is not FimOrder.SUFFIX_FIRST else (after, before)
        return layout.snippets.ids, *middle, layout.typed.ids

    def _num_shared(self, old: Layout, new: Layout) -> int:
        """Return how many tokens two prompts of a document share at their beginning, not counting markers."""
        num_shared = len(self._begin)
        for before, after in zip(self._parts(old), self._parts(new), strict=True):
            if before != after:
                return num_shared + common_prefix(before, after)
            num_shared += len(after)
        return num_shared

    def _token_ids(self, layout: Layout) -> list[int]:
        template, ids = self.template, self._ids
        tokens = [*self._begin, *layout.snippets.ids]
        before, after = layout.prefix.ids.tolist(), layout.suffix.ids.tolist()
        if template.order is FimOrder.PREFIX_ONLY:
            return tokens + before
        before.insert(0, ids[template.prefix])
        after.insert(0, ids[template.suffix])
        tokens += before + after if template.order is FimOrder.PREFIX_FIRST else after + before
        if template.middle:
            tokens.append(ids[template.middle])
        return tokens + layout.typed.ids.tolist()


def begin_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the tokens that the tokenizer puts before a text: its bos token, if it adds one."""
    ids: list[int] = tokenizer.encode("a", add_special_tokens=True).ids
    text: list[int] = tokenizer.encode("a", add_special_tokens=False).ids
    return ids[: next(at for at in range(len(ids)) if ids[at : at + len(text)] == text)]
