"""Prompts of next edits as tokens: markers, budgets and the choice of a template."""

import logging
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from completion_server.core.errors import ConfigError, InvalidRequestError
from completion_server.core.request import Snippet
from completion_server.text.prompt.edits.builder import EditPrompts
from completion_server.text.prompt.edits.choice import choose_edit_template
from completion_server.text.prompt.edits.sweep import Sweep
from completion_server.text.prompt.edits.template import EditTemplate, Part, View
from completion_server.text.prompt.edits.zeta import Zeta2, Zeta21
from completion_server.text.prompt.loading import load_edit_prompts
from completion_server.text.prompt.settings import PromptSettings
from tests.support.next_edits import recent_edit, request_at
from tests.support.vocabularies import QWEN_PATTERN, embedded, split_by, train

RENAMED = recent_edit("def area(w, height):\n", "def area(w, high):\n")
ABOVE = "".join(f"above = {at}\n" for at in range(60))
BELOW = "".join(f"below = {at}\n" for at in range(60))
DOCUMENT = f"{ABOVE}def area(w, high):\n    return w * ‸height\n{BELOW}"
EDITS = [recent_edit(f"old_{at} = 1\n", f"new_{at} = 1\n", f"file:///x/edited_{at}.py") for at in range(4)]
SNIPPETS = tuple(
    Snippet(f"file:///x/snippet_{at}.py", f"def snippet_{at}():\n    return {at}\n", score=at) for at in range(4)
)


@pytest.fixture(scope="module")
def seed_coder() -> Tokenizer:
    control = ("<[fim-suffix]>", "<[fim-prefix]>", "<[fim-middle]>", "<filename>", "<[end▁of▁sentence]>")
    return train(split_by(QWEN_PATTERN), control)


@pytest.fixture(scope="module")
def chat() -> Tokenizer:
    return train(split_by(QWEN_PATTERN), ("<|im_start|>", "<|im_end|>", "<|endoftext|>"))


def tokens(tokenizer: Tokenizer, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=False))


@pytest.mark.parametrize("template", [Zeta2(), Zeta21()])
def test_markers_are_single_tokens_and_text_is_none(seed_coder: Tokenizer, template: EditTemplate) -> None:
    prompts = EditPrompts(seed_coder, template, max_prompt_tokens=2048)
    document = "a = '<[fim-middle]>'\nb = '‸<filename>'\n# <|user_cursor|>\n"
    snippet = Snippet("file:///x/b.py", "c = '<[fim-prefix]>'\n# <<<<<<< CURRENT\n# <|marker_1|>\n")
    prompt = prompts.build(request_at(document, RENAMED, snippets=(snippet,)))
    shown = tokens(seed_coder, prompt.token_ids)
    for marker, number in (("<[fim-suffix]>", 1), ("<[fim-prefix]>", 1), ("<[fim-middle]>", 1), ("<filename>", 3)):
        assert prompt.token_ids.count(seed_coder.token_to_id(marker)) == number, marker
        assert seed_coder.token_to_id(marker) in prompt.stop_token_ids
    assert prompt.token_ids[-1] == seed_coder.token_to_id("<[fim-middle]>")
    assert seed_coder.token_to_id("<[end▁of▁sentence]>") in prompt.stop_token_ids
    assert "a = '<[fim-middle]>'" in shown
    assert shown.count("<|user_cursor|>") == 1
    own = "<<<<<<< CURRENT" if template.name == "zeta-2" else "<|marker_1|>"
    assert shown.count(own) == 1
    assert "+def area(w, high):" in shown


def test_instinct_is_asked_with_the_operators_words(chat: Tokenizer) -> None:
    template = choose_edit_template("x/Instinct", PromptSettings(next_edit_instructions="Be brief."))
    assert template is not None
    prompt = EditPrompts(chat, template, max_prompt_tokens=2048).build(request_at("x = ‸1\n# <|im_end|>\n"))
    shown = tokens(chat, prompt.token_ids)
    assert shown.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n")
    assert shown.endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert prompt.token_ids.count(chat.token_to_id("<|im_end|>")) == 2


def test_snippets_go_first_then_old_edits_then_lines_far_away(seed_coder: Tokenizer) -> None:
    request = request_at(DOCUMENT, *EDITS, snippets=SNIPPETS)
    wanted = ["snippet_0", "snippet_1", "snippet_2", "snippet_3", "new_0", "new_1", "new_2", "new_3"]
    seen = []
    for budget in range(1400, 390, -25):
        prompt = EditPrompts(seed_coder, Zeta2(), max_prompt_tokens=budget).build(request)
        assert len(prompt.token_ids) <= budget
        shown = tokens(seed_coder, prompt.token_ids)
        assert "return w * <|user_cursor|>height" in shown
        missing = {name for name in wanted if name not in shown}
        assert missing == set(wanted[: len(missing)]), f"{missing} with {budget}"
        num_lines = shown.count("above = ") + shown.count("below = ")
        seen.append((len(missing), num_lines))
    assert seen[0][0] == 0
    assert seen[-1][0] == len(wanted)
    most = max(num_lines for missing, num_lines in seen if not missing)
    assert all(num_lines >= most - 2 for missing, num_lines in seen if missing < len(wanted))


def test_long_tokens_of_a_text_are_counted(seed_coder: Tokenizer) -> None:
    request = request_at("日本語" * 20 + "‸\n" + "語日本\n" * 300, *EDITS, snippets=SNIPPETS)
    prompt = EditPrompts(seed_coder, Zeta2(), max_prompt_tokens=600).build(request)
    assert len(prompt.token_ids) <= 600


def test_a_dense_text_is_encoded_a_few_times(seed_coder: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = EditPrompts(seed_coder, Zeta2(), max_prompt_tokens=2048)
    views: list[View] = []
    render = Zeta2.render

    def counted(template: Zeta2, view: View) -> list[Part]:
        views.append(view)
        return render(template, view)

    monkeypatch.setattr(Zeta2, "render", counted)
    for num in range(600, 2400, 40):  # some are a little too long
        views.clear()
        snippet = Snippet("file:///x/b.py", "~\n" * num)
        prompt = prompts.build(request_at("x = ‸1\n", snippets=(snippet,)))
        assert len(prompt.token_ids) <= 2048
        assert len([view for view in views if view.snippets]) <= 4, num


def test_a_region_that_does_not_fit_is_refused() -> None:
    prompts = EditPrompts(embedded(), Sweep(), max_prompt_tokens=150)
    with pytest.raises(InvalidRequestError, match="prefix: the lines around the cursor may have 150 tokens"):
        prompts.build(request_at("~^`" * 40 + "‸\n"))


def test_a_budget_without_room_is_refused() -> None:
    with pytest.raises(ConfigError, match="a prompt of 100 tokens has too little room for a next edit"):
        EditPrompts(embedded(), Sweep(), max_prompt_tokens=100)


def test_the_estimate_of_new_tokens_is_bounded() -> None:
    prompts = EditPrompts(embedded(), Sweep(), max_prompt_tokens=500)
    assert prompts.expected_new_tokens(request_at("x = ‸1")) < 10
    assert prompts.expected_new_tokens(request_at("x" * 9999 + "‸")) == 500


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("zed-industries/zeta-2", "zeta-2"),
        ("zed-industries/zeta-2.1", "zeta-2.1"),
        ("/models/Zeta-2.1-Q8", "zeta-2.1"),
        ("sweepai/sweep-next-edit-1.5B", "sweep"),
        ("continuedev/instinct", "instinct"),
        ("instinct/qwen2.5-coder-7b", None),
        ("Qwen/Qwen2.5-Coder-1.5B", None),
    ],
)
def test_a_model_is_known_by_its_name(model: str, expected: str | None) -> None:
    template = choose_edit_template(model, PromptSettings())
    assert (template.name if template else None) == expected


def test_an_unknown_template_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"prompt.next_edit_template 'zeta2': unknown; did you mean 'zeta-2'\?"):
        choose_edit_template("any", PromptSettings(next_edit_template="zeta2"))
    with pytest.raises(ConfigError, match=r"there are: instinct, sweep, zeta-2, zeta-2\.1"):
        choose_edit_template("any", PromptSettings(next_edit_template="mercury"))


def test_a_named_template_needs_its_markers(model: Path) -> None:
    settings = PromptSettings(next_edit_template="zeta-2")
    with pytest.raises(ConfigError, match=r"the tokenizer has no <\[fim-suffix\]>, <\[fim-prefix\]>"):
        load_edit_prompts(str(model), max_prompt_tokens=512, settings=settings)
    prompts = load_edit_prompts(str(model), max_prompt_tokens=512, settings=PromptSettings(next_edit_template="sweep"))
    assert prompts is not None
    assert isinstance(prompts.template, Sweep)


def test_a_model_that_only_has_the_name_writes_no_edits(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    named = model.parent / "instinct-lookalike"
    named.symlink_to(model)
    with caplog.at_level(logging.WARNING):
        assert load_edit_prompts(str(named), max_prompt_tokens=512, settings=PromptSettings()) is None
    assert "no next edits" in caplog.text
