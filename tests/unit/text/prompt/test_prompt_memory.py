"""The memory of documents: whose it is, how much of it, and the tokens that it saves."""

from dataclasses import replace

import pytest

from completion_server.core.request import Caller
from completion_server.text.prompt.layout import Documents
from completion_server.text.prompt.settings import PromptSettings
from loadtest.bench.prompt import typed
from tests.support.constants import with_constants
from tests.unit.text.prompt.prompts import CODE, CURSOR, builder_of, layout_of, request_at

REQUEST = request_at(CODE[:3000] + CURSOR)


NAMED = Caller("ada", "me", connection="10.0.0.1:1000")


STREAM = Caller("", "me", connection="10.0.0.1:1000", stream=1)


def num_tokenised_after(first: Caller, second: Caller) -> tuple[int, int]:
    """Return how many tokens a document costs the first caller, and then how many it costs the second."""
    builder = builder_of("embedded")
    first_prompt, second_prompt = (builder.build(replace(REQUEST, caller=caller)) for caller in (first, second))
    assert first_prompt.token_ids == second_prompt.token_ids
    return first_prompt.num_tokenised, second_prompt.num_tokenised


def test_a_verified_users_documents_are_remembered_across_connections() -> None:
    verified = replace(NAMED, is_verified=True)
    assert num_tokenised_after(verified, replace(verified, connection="10.0.0.9:1", stream=4))[1] == 0


@pytest.mark.parametrize("caller", [NAMED, STREAM, replace(STREAM, user="ada")])
def test_a_callers_own_document_is_remembered(caller: Caller) -> None:
    first, second = num_tokenised_after(caller, caller)
    assert first > 100
    assert second == 0


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (NAMED, replace(NAMED, user="bob")),
        (NAMED, replace(NAMED, tenant="other")),
        (NAMED, replace(NAMED, session="other")),
        (NAMED, replace(NAMED, connection="10.0.0.1:1001")),
        (NAMED, replace(NAMED, stream=1)),
        (STREAM, replace(STREAM, stream=2)),
        (STREAM, replace(STREAM, stream=2, connection="10.0.0.2:1000")),
        (STREAM, replace(STREAM, stream=0)),
        (Caller("", "me", connection="10.0.0.1:1000"), Caller("", "me", connection="10.0.0.1:1000")),
        (Caller("", "me"), Caller("", "me")),
    ],
)
def test_another_caller_starts_from_nothing(first: Caller, second: Caller) -> None:
    cost, again = num_tokenised_after(first, second)
    assert again == cost > 100


def test_the_least_recently_used_documents_are_forgotten_beyond_a_number_of_bytes() -> None:
    layouts = {uri: replace(REQUEST, document_uri=uri) for uri in "abc"}
    builder = builder_of("embedded")
    builder.build(REQUEST)
    layout = layout_of(builder, REQUEST)
    documents = Documents(max_bytes=int(2.5 * layout.num_bytes))
    documents.put(layouts["a"], layout)
    documents.put(layouts["b"], layout)
    documents.put(layouts["a"], layout)
    documents.put(layouts["c"], layout)
    assert [uri for uri, request in layouts.items() if documents.get(request)] == ["a", "c"]
    assert 2 * layout.num_bytes < documents.num_bytes <= 2.5 * layout.num_bytes


def test_large_documents_count_by_their_size() -> None:
    """Characters outside the basic plane take four bytes each in memory."""
    builder = builder_of("embedded", max_prompt_tokens=2000, settings=with_constants(PromptSettings(), documents_mib=1))
    documents = builder.documents
    for number in range(200):
        builder.build(request_at("\U0001f642 = 1\n" * 3000 + CURSOR, uri=f"{number}" * 1000))
        assert documents.num_bytes <= 1024 * 1024
    assert 0 < len(documents) < 100


@pytest.mark.parametrize("family", ["embedded", "deepseek", "unknown"])
def test_new_tokens_are_those_behind_the_first_that_differs_from_the_documents_last_prompt(family: str) -> None:
    builder = builder_of(family, max_prompt_tokens=600)
    before: list[int] = []
    for state in typed(CODE, 60, seed=3):
        request = request_at(state.prefix + CURSOR + state.suffix)
        expected = builder.expected_new_tokens(request)
        prompt = builder.build(request)
        num_shared = next(
            (i for i, (a, b) in enumerate(zip(before, prompt.token_ids, strict=False)) if a != b),
            min(len(before), len(prompt.token_ids)),
        )
        num_new = len(prompt.token_ids) - num_shared
        assert abs(prompt.num_new_tokens - num_new) <= 3, "markers are left out"
        if num_new < 20:
            assert expected <= 60, "a key is expected to be cheap"
        before = prompt.token_ids


def test_a_document_that_is_not_known_is_expected_to_be_new() -> None:
    builder = builder_of("embedded", max_prompt_tokens=600)
    request = request_at(CODE[:3000] + CURSOR)
    assert builder.expected_new_tokens(request) > 400
    builder.build(request)
    assert builder.expected_new_tokens(request_at(CODE[:3000] + "x" + CURSOR)) < 60
    assert builder.expected_new_tokens(request_at(CODE[5000:9000] + CURSOR)) > 400
