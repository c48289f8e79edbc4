"""Templates are found from the vocabulary, and may be replaced."""

import logging

import pytest

from completion_server.core.errors import ConfigError
from completion_server.prompt.detection import choose_template, detect_template
from completion_server.prompt.templates import FAMILIES, PREFIX_ONLY, Order, PathAt

PIPED = {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"}
ANGLE = {"<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<fim_pad>"}
STARCODER = ANGLE | {"<|endoftext|>", "<filename>", "<gh_stars>", "<reponame>", "<issue_start>"}

VOCABULARIES = {
    "codellama": {"<s>", "</s>", "▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"},
    "deepseek": {"<｜begin▁of▁sentence｜>", "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", "<|EOT|>"},
    "codestral": {"<s>", "[INST]", "[SUFFIX]", "[PREFIX]", "[MIDDLE]"},
    "codegemma": PIPED | {"<bos>", "<eos>", "<|file_separator|>"},
    "qwen": PIPED | {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|repo_name|>", "<|file_sep|>", "<|fim_pad|>"},
    "granite4": PIPED | {"<|end_of_text|>", "<|fim_pad|>", "<|filename|>", "<|reponame|>", "<|start_of_role|>"},
    "embedded": PIPED | {"<|endoftext|>", "<|file_sep|>"},
    "starcoder2": ANGLE | {"<|endoftext|>", "<repo_name>", "<file_sep>", "<issue_start>"},
    "mellum": ANGLE | {"<|endoftext|>", "<filename>", "<reponame>"},
    "granite": STARCODER,
    "fim": PIPED,
}


@pytest.mark.parametrize("name", VOCABULARIES)
def test_each_family_is_found_from_its_own_tokens(name: str) -> None:
    assert detect_template(VOCABULARIES[name]).name == name


def test_every_family_is_covered() -> None:
    assert set(VOCABULARIES) == {family.name for family in FAMILIES}


def test_the_name_decides_between_families_with_the_same_tokens() -> None:
    assert detect_template(STARCODER, "ibm-granite/granite-8b-code-base").name == "granite"
    assert detect_template(STARCODER, "JetBrains/Mellum-4b-base").name == "mellum"
    assert detect_template(VOCABULARIES["starcoder2"], "mellum-lookalike").name == "starcoder2"


def test_a_model_without_markers_completes_from_the_prefix_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert detect_template({"<s>", "</s>", "<|im_start|>"}, "chat-model") is PREFIX_ONLY
    assert "chat-model has no fill-in-the-middle tokens" in caplog.text


def test_half_a_set_of_markers_is_none(caplog: pytest.LogCaptureFixture) -> None:
    assert detect_template({"<|fim_prefix|>", "<|fim_suffix|>"}) is PREFIX_ONLY
    assert caplog.records


def test_a_template_may_be_named() -> None:
    assert choose_template(VOCABULARIES["qwen"], "", "qwen").name == "qwen"
    assert choose_template(VOCABULARIES["qwen"], "", "prefix-only") is PREFIX_ONLY


def test_fields_may_be_replaced() -> None:
    replaced = {
        "prefix": "<P>",
        "suffix": "<S>",
        "middle": "",
        "file": "",
        "order": "suffix_first",
        "path_at": "inside",
    }
    template = choose_template({"<P>", "<S>"}, "", "fim", replaced)
    assert (template.order, template.path_at) == (Order.SUFFIX_FIRST, PathAt.INSIDE)
    assert template.markers == ("<P>", "<S>")


@pytest.mark.parametrize(
    ("name", "replaced", "message"),
    [
        ("qwem", {}, "did you mean 'qwen'"),
        ("zzz", {}, "there are: codegemma, codellama"),
        ("starcoder2", {}, "the tokenizer has no <fim_prefix>, <fim_suffix>, <fim_middle>, <file_sep>"),
        ("fim", {"prefx": "<P>"}, "did you mean 'prefix'"),
        ("fim", {"order": "middle_first"}, "must be one of prefix_first, suffix_first, prefix_only"),
        ("fim", {"suffix": ""}, "needs both a prefix and a suffix marker"),
    ],
)
def test_impossible_templates_are_refused(name: str, replaced: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_template(PIPED, "", name, replaced)
