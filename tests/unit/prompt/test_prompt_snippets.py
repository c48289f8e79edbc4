"""Snippets in prompts: how long they stay, which are shown, and the paths above them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_server.core.request import Snippet
from completion_server.prompt.snippets import short_path
from tests.support.vocabularies import FAMILIES
from tests.unit.prompt.prompts import CODE, CURSOR, builder_of, request_at, text_of

LINES = CODE.splitlines(keepends=True)


def snippet_named(name: str, text: str = "") -> Snippet:
    return Snippet(f"file:///{name}.py", text or f"def {name}():\n    return '{name}'\n", 1.0)


def test_changed_snippets_stay_until_they_are_old_or_the_window_moves() -> None:
    builder = builder_of("embedded", max_prompt_tokens=400)
    one, more, changed = (
        (snippet_named("one"),),
        (snippet_named("one"), snippet_named("other")),
        (snippet_named("one", "def changed():\n    return 1\n"),),
    )
    document = "".join(LINES[:30]) + CURSOR

    def shown(snippets: tuple[Snippet, ...], at_s: float) -> str:
        prompt = builder.build(request_at(document, snippets=snippets, received_at=at_s))
        return text_of(FAMILIES["embedded"](), prompt.token_ids)

    assert "def one" in shown(one, 0.0)
    assert "def other" not in shown(more, 28.0), "others beside it can wait"
    assert "def one" in shown(changed, 29.0), "so can its new text"
    assert "def one" in shown(one, 100.0), "not stale while they are offered"
    assert "def other" in shown(more, 101.0)


@pytest.mark.parametrize("newer", [(), (snippet_named("other"),)])
def test_a_snippet_that_is_no_longer_offered_leaves_the_prompt_at_once(newer: tuple[Snippet, ...]) -> None:
    builder = builder_of("embedded", max_prompt_tokens=400)
    secret = snippet_named("keys", "def keys():\n    return 'sk-CANARY'\n")
    document = "".join(LINES[:30])
    for number, snippets in enumerate([(secret,), newer]):
        request = request_at(document + f"x{number}" + CURSOR, snippets=snippets, received_at=number / 10)
        prompt = text_of(FAMILIES["embedded"](), builder.build(request).token_ids)
        assert ("CANARY" in prompt) == (number == 0)


def test_the_best_snippets_are_shown_next_to_the_text() -> None:
    builder = builder_of("embedded", max_prompt_tokens=300)
    snippets = tuple(
        Snippet(f"file:///{number}.py", f"def f_{number}():\n" + f"    return {number}\n" * 4, number / 10)
        for number in range(9)
    )
    prompt = builder.build(request_at("".join(LINES[:200]) + CURSOR, snippets=snippets))
    head = text_of(FAMILIES["embedded"](), prompt.token_ids).partition("<|fim_prefix|>")[0]
    order = [number for number in range(9) if f"f_{number}" in head]
    assert order[-1] == 8
    assert 1 <= len(order) <= 3
    assert head.rindex("f_8") > head.index(f"f_{order[0]}") or len(order) == 1


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///home/ann/app%20one/main.py", "ann/app one/main.py"),
        ("untitled:Untitled-1", "Untitled-1"),
        ("vscode-remote://ssh-remote+[host]/home/ann/main.py", "home/ann/main.py"),
        ("http://[x]/", "http:/[x]"),
        ("//[", "["),
        ("http://a\u2100b/c", "http:/a\u2100b/c"),
        ("", ""),
    ],
)
def test_the_last_parts_of_any_uri(uri: str, path: str) -> None:
    assert short_path(uri) == path


@given(st.text() | st.from_regex(r"(http|file|x-y)://[\[\]:%a-f0-9\u2100]*/?.*"))
def test_any_text_gives_one_line(uri: str) -> None:
    assert len(short_path(uri).splitlines()) <= 1
