"""Prompts from key to key: their tokens, their window and their snippets."""

import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from completion_server.core.errors import ConfigError, InvalidRequestError
from completion_server.core.request import Snippet
from completion_server.text.prompt.builder import PromptBuilder
from completion_server.text.prompt.settings import PromptSettings
from completion_server.text.prompt.snippets import short_path
from completion_server.text.prompt.templates import PREFIX_ONLY
from completion_server.text.prompt.tokens.plaintext import make_plain
from loadtest.bench.prompt import typed
from tests.support.vocabularies import FAMILIES
from tests.unit.text.prompt.prompts import CODE, CURSOR, builder_of, layout_of, request_at, text_of

LINES = CODE.splitlines(keepends=True)


def common(one: list[int], other: list[int]) -> int:
    """Tokens that two prompts share at their start."""
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return index
    return min(len(one), len(other))


WORDS = ["embedded", "qwen", "starcoder2", "llama3", "tekken", "deepseek"]
LINES_ONLY = ["llama2", "metaspace", "gemma"]


@pytest.mark.parametrize(
    ("family", "most"), [*((family, 8) for family in WORDS), *((family, 45) for family in LINES_ONLY)]
)
def test_a_key_computes_few_tokens(family: str, most: int) -> None:
    """The words around it where words are known, else its line."""
    builder = builder_of(family, max_prompt_tokens=400)
    at = CODE.find("\n", 8000) + 1
    requests = [request_at(CODE[: at + key] + CURSOR + CODE[at + 80 :]) for key in range(80)]
    computed = [builder.build(request).num_tokenised for request in requests]
    assert builder.can_reuse_tokens
    assert sorted(computed)[40] <= most
    assert computed[0] > 300


def test_without_a_rule_a_key_computes_its_own_segment() -> None:
    builder = builder_of("unknown", max_prompt_tokens=400)
    at = CODE.find("def ", 8000)
    first, second = (
        builder.build(request_at(CODE[: at + key] + CURSOR + CODE[at + 80 :])).num_tokenised for key in (1, 2)
    )
    assert not builder.can_reuse_tokens
    assert 0 < second < 10 < first, "the line; markers keep the other segments apart"


def test_a_key_only_appends() -> None:
    builder = builder_of("embedded", max_prompt_tokens=400)
    at = CODE.find("    def ", 9000) + 4
    prompts = [
        builder.build(request_at(CODE[: at + key] + CURSOR + CODE[at + 40 :])).token_ids
        for key in range(CODE.find("\n", at) - at)
    ]
    for one, other in pairwise(prompts):
        assert len(one) - common(one, other) <= 3


def test_a_new_line_moves_nothing_where_lines_may_stand_behind_the_marker() -> None:
    builder = builder_of("qwen", max_prompt_tokens=400, lines_behind=12)
    above, below = "".join(LINES[:60]), "".join(LINES[70:])
    first = builder.build(request_at(above + "    x = 1" + CURSOR + "\n" + below)).token_ids
    second = builder.build(request_at(above + "    x = 1\n    y" + CURSOR + "\n" + below)).token_ids
    assert common(first, second) >= len(first) - 1
    for number in range(60):
        above += f"    value_{number} = {number}\n"
        prompt = builder.build(request_at(above + "    z" + CURSOR + "\n" + below))
        assert len(prompt.token_ids) <= 400
    typed_text = layout_of(builder, request_at(CURSOR)).typed.text
    assert 1 <= typed_text.count("\n") < 12


def test_what_is_typed_only_appends_where_all_lines_stand_behind_the_marker() -> None:
    builder = builder_of("qwen", max_prompt_tokens=600)
    below = "\n" + "".join(LINES[40:60])
    above = "".join(LINES[:30])
    typed_text = "    def first(self):\n        return self.\n\n    x"
    prompts = [
        builder.build(request_at(above + typed_text[:key] + CURSOR + below)).token_ids for key in range(len(typed_text))
    ]
    for one, other in pairwise(prompts):
        assert len(one) - common(one, other) <= 2


def test_no_line_stands_behind_the_marker_of_a_family_that_was_trained_so() -> None:
    prompt = builder_of("deepseek").build(request_at(f"a\nbc{CURSOR}d\n")).token_ids
    assert text_of(FAMILIES["deepseek"](), prompt) == "<｜fim▁begin｜>a\nbc<｜fim▁hole｜>d\n<｜fim▁end｜>"


def test_the_estimate_counts_what_the_document_did_not_have() -> None:
    above, below = "".join(LINES[:60]), "\n" + "".join(LINES[60:90])
    for family in ("embedded", "qwen", "deepseek", "llama3"):
        builder = builder_of(family, max_prompt_tokens=2000)
        builder.build(request_at(above + "x = 1" + CURSOR + below))
        typed_more = builder.expected_new_tokens(request_at(above + "x = 1234" + CURSOR + below))
        elsewhere = builder.expected_new_tokens(request_at("".join(LINES[40:]) + CURSOR))
        assert typed_more <= 3
        assert elsewhere > 100


def test_the_embedded_models_see_exactly_the_line_behind_the_marker() -> None:
    builder = builder_of("embedded", max_prompt_tokens=400)
    above = "".join(LINES[:30])
    for extra in ("    x = 1", "    x = 1\n    y", "    x = 1\n    yy = 2\n"):
        prompt = builder.build(request_at(above + extra + CURSOR + "\n")).token_ids
        assert text_of(FAMILIES["embedded"](), prompt).rpartition("<|fim_middle|>")[2] == extra.rpartition("\n")[2]


def test_the_window_moves_seldom_and_far() -> None:
    builder = builder_of("embedded", max_prompt_tokens=400)
    starts = []
    for number in range(100, 260):
        request = request_at("".join(LINES[:number]) + CURSOR)
        builder.build(request)
        starts.append(layout_of(builder, request).span.start)
    moves = [(one, other) for one, other in pairwise(starts) if one != other]
    assert len(moves) <= 25
    assert all(other - one >= 100 for one, other in moves)


def test_the_window_survives_an_edit_above_it_and_a_client_that_cuts() -> None:
    builder = builder_of("embedded", max_prompt_tokens=300)
    text = "".join(LINES[:200])
    first = builder.build(request_at(text + CURSOR)).token_ids
    assert common(builder.build(request_at("import abc\n" + text + "x" + CURSOR)).token_ids, first) >= len(first)
    assert common(builder.build(request_at(text[1234:] + "xy" + CURSOR)).token_ids, first) >= len(first)


def test_going_up_lays_out_anew_when_little_is_left_above() -> None:
    builder = builder_of("embedded", max_prompt_tokens=300)
    builder.build(request_at("".join(LINES[:200]) + CURSOR + "".join(LINES[200:])))
    start = layout_of(builder, request_at(CURSOR)).span.start
    lines_shown = "".join(LINES[:200])[start:].count("\n")
    up = 200 - lines_shown + 1
    prompt = builder.build(request_at("".join(LINES[:up]) + CURSOR + "".join(LINES[up:])))
    assert layout_of(builder, request_at(CURSOR)).span.start < start
    assert len(prompt.token_ids) > 200


def test_two_builders_agree_on_a_document_they_see_first() -> None:
    document = CODE[:9000] + CURSOR + CODE[9000:]
    one, other = (builder_of("embedded", max_prompt_tokens=300).build(request_at(document)) for _ in range(2))
    assert one == other


def test_the_end_of_the_suffix_stays_where_it_was() -> None:
    builder = builder_of("embedded", max_prompt_tokens=400)
    above, below = "".join(LINES[:60]), "\n" + "".join(LINES[70:])
    builder.build(request_at(above + "f" + CURSOR + below))
    before = layout_of(builder, request_at(CURSOR)).suffix.text
    assert before.endswith("\n")
    builder.build(request_at(above + "f(" + CURSOR + ")" + below))
    assert layout_of(builder, request_at(CURSOR)).suffix.text == ")" + before
    prompt = builder.build(request_at(above + "f()" + CURSOR + below))
    assert layout_of(builder, request_at(CURSOR)).suffix.text == before
    assert prompt.num_tokenised < 20


def test_the_budget_gives_up_snippets_then_the_suffix_then_the_prefix_but_never_the_line() -> None:
    snippet = (Snippet("file:///b.py", "def b():\n    return 1\n" * 9, 1.0),)
    above, below = "".join(LINES[:200]), "\n" + "".join(LINES[200:])
    seen = []
    for num_words in (1, 30, 50, 70, 90, 105, 124):
        builder = builder_of("embedded", max_prompt_tokens=256)
        line = "x = " + "a + " * num_words
        request = request_at(above + line + CURSOR + below, snippets=snippet)
        prompt = builder.build(request)
        layout = layout_of(builder, request)
        assert layout.typed.text == line
        assert len(prompt.token_ids) <= 256
        seen.append((len(layout.snippets.ids) > 0, bool(layout.suffix.text), len(layout.prefix.text) > 0))
    assert seen[0] == (True, True, True)
    assert not seen[-1][2], "not one line above fits: the suffix may have the rest"
    assert seen[:-1] == sorted(seen[:-1], reverse=True), "a part that was given up stays given up"
    assert (False, True, True) in seen
    assert (False, False, True) in seen


def test_the_suffix_comes_back_behind_a_long_line() -> None:
    builder = builder_of("embedded", max_prompt_tokens=256)
    above, below = "".join(LINES[:200]), "\n" + "".join(LINES[200:])
    builder.build(request_at(above + "x = " + "a + " * 75 + CURSOR + below))
    assert len(layout_of(builder, request_at(CURSOR)).suffix.text) < 100
    builder.build(request_at(above + "x = " + "a + " * 75 + "\n    y" + CURSOR + below))
    assert len(layout_of(builder, request_at(CURSOR)).suffix.ids) > 40


def test_a_preamble_that_no_marker_sets_apart_is_not_laid_out_anew_at_each_key() -> None:
    builder = builder_of("llama3", max_prompt_tokens=256, settings=PromptSettings(preamble="# rule\n" * 12))
    above = "".join(LINES[:60])
    first, second = (builder.build(request_at(above + line + CURSOR)) for line in ("x = 1", "x = 12"))
    assert common(first.token_ids, second.token_ids) >= len(first.token_ids) - 2
    assert second.num_tokenised < 8


def test_a_line_that_does_not_fit_is_refused() -> None:
    builder = builder_of("embedded", max_prompt_tokens=64)
    with pytest.raises(InvalidRequestError, match=r"may have 61 tokens, and has \d+ tokens") as refused:
        builder.build(request_at("x = 1\n" + "word, " * 100 + CURSOR))
    assert refused.value.violations[0].field == "prefix"
    with pytest.raises(InvalidRequestError, match="has 5000000 characters"):
        builder.build(request_at("x" * 5_000_000 + CURSOR))
    builder.build(request_at("word, " * 4000 + "\nshort" + CURSOR))


def test_a_document_of_long_lines() -> None:
    builder = builder_of("embedded", max_prompt_tokens=128)
    minified = "var a=1;" * 40_000
    prompt = builder.build(request_at(f"{minified}\nb{CURSOR};\n{minified}"))
    assert len(prompt.token_ids) <= 128, "only whole lines are shown, and here none fits"
    prompt = builder.build(request_at(f"{minified}\na = 1\nb{CURSOR} = 2{minified}"))
    assert 35 < len(prompt.token_ids) <= 128, "of the cursor's own line as much as fits"
    assert prompt.num_tokenised < 4000


def test_several_threads_build_at_once() -> None:
    builder = builder_of("embedded", max_prompt_tokens=300)
    states = typed(CODE, 40, seed=8)
    requests = [request_at(state.prefix + CURSOR + state.suffix) for state in states]
    middle = FAMILIES["embedded"]().token_to_id("<|fim_middle|>")
    whole = make_plain(FAMILIES["embedded"]()).tokenizer
    failures: list[object] = []

    def build(turn: int) -> None:
        for request in requests[turn::2] + requests[::-1]:
            prompt = builder.build(request)
            typed_ids = prompt.token_ids[prompt.token_ids.index(middle) + 1 :]
            line = request.prefix[request.prefix.rfind("\n") + 1 :]
            if typed_ids != whole.encode(line).ids:
                failures.append(request)

    threads = [threading.Thread(target=build, args=(turn % 2,)) for turn in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "a thread did not build its prompts within 30 s"
    assert not failures


@pytest.mark.parametrize("max_prompt_tokens", [4, 12])
def test_a_budget_without_room_is_refused(max_prompt_tokens: int) -> None:
    settings = PromptSettings(preamble="# some words that take room\n")
    with pytest.raises(ConfigError, match="too little room"):
        builder_of("embedded", max_prompt_tokens=max_prompt_tokens, settings=settings)


def test_a_tokenizer_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="only byte-pair encodings"):
        PromptBuilder(Tokenizer(models.WordLevel({"a": 0}, unk_token="a")), PREFIX_ONLY, max_prompt_tokens=64)


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
