import threading
from itertools import pairwise

import pytest
from tokenizers import Tokenizer, models

from completion_server.core.errors import ConfigError, InvalidRequestError
from completion_server.core.request import Snippet
from completion_server.prompt.builder import PromptBuilder
from completion_server.prompt.settings import PromptSettings
from completion_server.prompt.templates import PREFIX_ONLY
from completion_server.prompt.tokens.plaintext import make_plain
from loadtest.bench.prompt.keystrokes import typed
from tests.support.vocabularies import FAMILIES
from tests.unit.prompt.prompts import CODE, CURSOR, builder_of, layout_of, request_at, text_of

LINES = CODE.splitlines(keepends=True)


def common(one: list[int], other: list[int]) -> int:
    """Tokens that two prompts share at their start."""
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return index
    return min(len(one), len(other))


@pytest.mark.parametrize("family", FAMILIES)
def test_typing_gives_at_each_key_what_tokenising_everything_gives(family: str) -> None:
    builder = builder_of(family, max_prompt_tokens=220)
    whole = make_plain(FAMILIES[family]()).tokenizer
    for number, state in enumerate(typed(CODE, 70, seed=3)):
        request = request_at(state.prefix + CURSOR + state.suffix)
        prompt = builder.build(request)
        layout = layout_of(builder, request)
        for part in (layout.prefix, layout.suffix, layout.typed):
            assert part.ids.tolist() == whole.encode(part.text, add_special_tokens=False).ids, number
        assert len(prompt.token_ids) <= 220
        line = state.prefix[state.prefix.rfind("\n") + 1 :]
        assert (layout.prefix.text + layout.typed.text).endswith(line)
        assert state.suffix.startswith(layout.suffix.text)


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
    builder = builder_of("qwen", max_prompt_tokens=400)
    above, below = "".join(LINES[:60]), "".join(LINES[70:])
    first = builder.build(request_at(above + "    x = 1" + CURSOR + "\n" + below)).token_ids
    second = builder.build(request_at(above + "    x = 1\n    y" + CURSOR + "\n" + below)).token_ids
    assert common(first, second) >= len(first) - 1
    for number in range(60):
        above += f"    value_{number} = {number}\n"
        prompt = builder.build(request_at(above + "    z" + CURSOR + "\n" + below))
        assert len(prompt.token_ids) <= 400
    typed_text = layout_of(builder, request_at(CURSOR)).typed.text
    assert 1 <= typed_text.count("\n") <= 20


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


def test_a_client_that_sends_a_fixed_number_of_characters_keeps_its_window() -> None:
    builder = builder_of("embedded", max_prompt_tokens=1200)
    changes = 0
    prompt: list[int] = []
    for key in range(120):
        document = CODE[8000 + key : 10000 + key]
        earlier, prompt = prompt, builder.build(request_at(document + CURSOR)).token_ids
        changes += common(earlier, prompt) < len(earlier) - 40
    assert changes <= 4


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


@pytest.mark.parametrize("family", FAMILIES)
def test_a_line_that_just_fits_is_whole(family: str) -> None:
    builder = builder_of(family, max_prompt_tokens=64)
    line = "x"
    while True:
        try:
            prompt = builder.build(request_at("import os\n" + line + CURSOR + "\nimport sys\n"))
        except InvalidRequestError:
            break
        assert len(prompt.token_ids) <= 64
        assert line in text_of(FAMILIES[family](), prompt.token_ids)
        line += " + y"
    assert len(line) > 64


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
        thread.join()
    assert not failures


def test_empty_and_odd_documents() -> None:
    for family in FAMILIES:
        builder = builder_of(family)
        for document in (
            CURSOR,
            f"{CURSOR}\n",
            f"\n{CURSOR}",
            f"x{CURSOR}",
            f"a\r\nb{CURSOR}\r\nc",
            f"\r{CURSOR}",
            f"é\n{CURSOR}日",
        ):
            prompt = builder.build(request_at(document))
            prefix, _, suffix = document.partition(CURSOR)
            shown = text_of(FAMILIES[family](), prompt.token_ids)
            assert prefix.rpartition("\n")[2] in shown
            assert suffix in shown or builder.template is PREFIX_ONLY


@pytest.mark.parametrize("max_prompt_tokens", [4, 12])
def test_a_budget_without_room_is_refused(max_prompt_tokens: int) -> None:
    settings = PromptSettings(preamble="# some words that take room\n")
    with pytest.raises(ConfigError, match="too little room"):
        builder_of("embedded", max_prompt_tokens=max_prompt_tokens, settings=settings)


def test_a_tokenizer_without_a_fast_form_is_refused() -> None:
    with pytest.raises(ConfigError, match="the model needs a tokenizer"):
        PromptBuilder(object(), PREFIX_ONLY, max_prompt_tokens=64)
    with pytest.raises(ConfigError, match="only byte-pair encodings"):
        PromptBuilder(Tokenizer(models.WordLevel({"a": 0}, unk_token="a")), PREFIX_ONLY, max_prompt_tokens=64)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("suffix_share", 0.6),
        ("snippet_share", -0.1),
        ("window_step", 0.5),
        ("documents_mib", 0),
        ("max_recent_tokens", -1),
    ],
)
def test_settings_out_of_range_are_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field}: must be"):
        PromptSettings(**{field: value})  # type: ignore[arg-type]
