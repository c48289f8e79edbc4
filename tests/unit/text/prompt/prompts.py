"""Requests and builders for the tests of the prompt library."""

import inspect
import textwrap
from dataclasses import replace

from tokenizers import Tokenizer

from completion_server.core.request import Caller, Mode, Request, Snippet
from completion_server.text.prompt.builder import PromptBuilder
from completion_server.text.prompt.layout import Layout
from completion_server.text.prompt.loading import choose_template
from completion_server.text.prompt.settings import PromptSettings
from tests.support.vocabularies import FAMILIES

CURSOR = "‸"
CODE = inspect.getsource(textwrap)


def request_at(
    document: str,
    *,
    uri: str = "file:///home/ada/project/src/app/a.py",
    session: str = "s1",
    mode: Mode = Mode.SINGLE_LINE,
    snippets: tuple[Snippet, ...] = (),
    received_at: float = 0.0,
    language_id: str = "python",
) -> Request:
    """Return a request for a document with its cursor marked."""
    prefix, _, suffix = document.partition(CURSOR)
    return Request(
        id="r1",
        caller=Caller("ada", session),
        sequence=1,
        document_uri=uri,
        language_id=language_id,
        prefix=prefix,
        suffix=suffix,
        max_tokens=64,
        received_at=received_at,
        snippets=snippets,
        mode=mode,
    )


UNHEALED = PromptSettings(token_healing=False)
"""For tests of what a prompt has before the word at the cursor."""


def builder_of(
    family: str,
    *,
    max_prompt_tokens: int = 256,
    settings: PromptSettings = UNHEALED,
    lines_behind: int | None = None,
) -> PromptBuilder:
    """Return a builder with a small vocabulary of a family; `lines_behind` replaces the template's."""
    tokenizer = FAMILIES[family]()
    template = choose_template(tokenizer.get_vocab(), family)
    if lines_behind is not None:
        template = replace(template, lines_behind=lines_behind)
    return PromptBuilder(tokenizer, template, max_prompt_tokens=max_prompt_tokens, settings=settings)


def layout_of(builder: PromptBuilder, request: Request) -> Layout:
    """Return the builder's memory of a request's document."""
    layout = builder.documents.get(request)
    assert layout is not None
    return layout


def text_of(tokenizer: Tokenizer, token_ids: list[int]) -> str:
    """Return a prompt as text, markers included."""
    text: str = tokenizer.decode(token_ids, skip_special_tokens=False)
    return text
