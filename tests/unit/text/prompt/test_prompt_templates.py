"""Templates are found from the vocabulary, and the prompts of each family equal the formats in the models' cards."""

import logging
from pathlib import Path

import pytest

from completion_server.core.errors import ConfigError
from completion_server.core.request import Mode, Snippet
from completion_server.text.prompt.builder import PromptBuilder
from completion_server.text.prompt.loading import choose_template, detect_template, load_prompt_builder
from completion_server.text.prompt.settings import PromptSettings
from completion_server.text.prompt.templates import ALL_LINES, PREFIX_ONLY, FimOrder, PathAt
from completion_server.text.prompt.tokens.plaintext import MAX_NEWLINE_TOKENS
from tests.support.vocabularies import ANGLE, FAMILIES, PIPED, split_by, train
from tests.unit.text.prompt.prompts import CURSOR, UNHEALED, builder_of, request_at, text_of

PIPES = {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"}
ANGLES = {"<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<fim_pad>"}
STARCODER = ANGLES | {"<|endoftext|>", "<filename>", "<gh_stars>", "<reponame>", "<issue_start>"}

VOCABULARIES = {
    "codellama": {"<s>", "</s>", "▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"},
    "deepseek": {"<｜begin▁of▁sentence｜>", "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", "<|EOT|>"},
    "codestral": {"<s>", "[INST]", "[SUFFIX]", "[PREFIX]", "[MIDDLE]"},
    "codegemma": PIPES | {"<bos>", "<eos>", "<|file_separator|>"},
    "qwen": PIPES | {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|repo_name|>", "<|file_sep|>", "<|fim_pad|>"},
    "granite4": PIPES | {"<|end_of_text|>", "<|fim_pad|>", "<|filename|>", "<|reponame|>", "<|start_of_role|>"},
    "embedded": PIPES | {"<|endoftext|>", "<|file_sep|>"},
    "starcoder2": ANGLES | {"<|endoftext|>", "<repo_name>", "<file_sep>", "<issue_start>"},
    "mellum": ANGLES | {"<|endoftext|>", "<filename>", "<reponame>"},
    "seedcoder": {"<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", "<filename>", "<[end▁of▁sentence]>"},
    "granite": STARCODER,
    "fim": PIPES,
}


@pytest.mark.parametrize("name", VOCABULARIES)
def test_each_family_is_found_from_its_own_tokens(name: str) -> None:
    assert detect_template(VOCABULARIES[name]).name == name


def test_the_name_decides_between_families_with_the_same_tokens() -> None:
    assert detect_template(STARCODER, "ibm-granite/granite-8b-code-base").name == "granite"
    assert detect_template(STARCODER, "JetBrains/Mellum-4b-base").name == "mellum"
    assert detect_template(VOCABULARIES["starcoder2"], "mellum-lookalike").name == "starcoder2"


def test_a_model_without_markers_completes_from_the_prefix_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert detect_template({"<s>", "</s>", "<|im_start|>"}, "chat-model") is PREFIX_ONLY
    assert "chat-model has no fill-in-the-middle tokens" in caplog.text


def test_fields_may_be_replaced() -> None:
    replaced = {
        "prefix": "<P>",
        "suffix": "<S>",
        "middle": "",
        "file": "",
        "order": "suffix_first",
        "path_at": "inside",
        "lines_behind": "all",
    }
    template = choose_template({"<P>", "<S>"}, "", "fim", replaced)
    assert (template.order, template.path_at) == (FimOrder.SUFFIX_FIRST, PathAt.INSIDE)
    assert template.markers == ("<P>", "<S>")
    assert template.lines_behind == ALL_LINES


@pytest.mark.parametrize(
    ("name", "replaced", "message"),
    [
        ("qwem", {}, "did you mean 'qwen'"),
        ("zzz", {}, "there are: codegemma, codellama"),
        ("starcoder2", {}, "the tokenizer has no <fim_prefix>, <fim_suffix>, <fim_middle>, <file_sep>"),
        ("fim", {"prefx": "<P>"}, "did you mean 'prefix'"),
        ("fim", {"order": "middle_first"}, "must be one of prefix_first, suffix_first, prefix_only"),
        ("fim", {"lines_behind": "some"}, 'must be "all" or a number of lines'),
        ("fim", {"suffix": ""}, "needs both a prefix and a suffix marker"),
    ],
)
def test_impossible_templates_are_refused(name: str, replaced: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_template(PIPES, "", name, replaced)


DOCUMENT = f"import os\n\ndef f(x):\n    retur{CURSOR}n x\n\nprint(f(1))\n"
SNIPPETS = (
    Snippet("file:///home/ada/project/src/app/b.py", "def b():\n    return 2\n", 0.5),
    Snippet("file:///home/ada/project/src/app/c.py", "def c():\n    return 3", 0.9),
)

SHOWN = {
    "embedded": (
        "<|file_sep|>def b():\n    return 2\n<|file_sep|>def c():\n    return 3\n"
        "<|fim_prefix|>import os\n\ndef f(x):\n<|fim_suffix|>n x\n\nprint(f(1))\n<|fim_middle|>    retur"
    ),
    "qwen": (
        "<|file_sep|>src/app/b.py\ndef b():\n    return 2\n<|file_sep|>src/app/c.py\ndef c():\n    return 3\n"
        "<|file_sep|>src/app/a.py\n"
        "<|fim_prefix|><|fim_suffix|>n x\n\nprint(f(1))\n<|fim_middle|>import os\n\ndef f(x):\n    retur"
    ),
    "starcoder2": (
        "<file_sep>src/app/b.py\ndef b():\n    return 2\n<file_sep>src/app/c.py\ndef c():\n    return 3\n<file_sep>"
        "<fim_prefix><fim_suffix>n x\n\nprint(f(1))\n<fim_middle>src/app/a.py\nimport os\n\ndef f(x):\n    retur"
    ),
    "deepseek": (
        "<｜fim▁begin｜># src/app/b.py:\n# def b():\n#     return 2\n# src/app/c.py:\n# def c():\n#     return 3\n"
        "import os\n\ndef f(x):\n    retur<｜fim▁hole｜>n x\n\nprint(f(1))\n<｜fim▁end｜>"
    ),
    "tekken": (
        "[SUFFIX]n x\n\nprint(f(1))\n[PREFIX]+++++ src/app/b.py\ndef b():\n    return 2\n"
        "+++++ src/app/c.py\ndef c():\n    return 3\n+++++ src/app/a.py\nimport os\n\ndef f(x):\n    retur"
    ),
    "llama3": (
        "<|begin_of_text|># src/app/b.py:\n# def b():\n#     return 2\n# src/app/c.py:\n# def c():\n#     return 3\n"
        "import os\n\ndef f(x):\n    retur"
    ),
    "gemma": (
        "<s><|file_separator|>src/app/b.py\ndef b():\n    return 2\n<|file_separator|>src/app/c.py\ndef c():\n"
        "    return 3\n<|file_separator|>src/app/a.py\n"
        "<|fim_prefix|><|fim_suffix|>n x\n\nprint(f(1))\n<|fim_middle|>import os\n\ndef f(x):\n    retur"
    ),
    "llama2": (
        "<s>▁<PRE>▁<SUF>n x\n\nprint(f(1))\n▁<MID> # src/app/b.py:\n# def b():\n#     return 2\n# src/app/c.py:\n"
        "# def c():\n#     return 3\nimport os\n\ndef f(x):\n    retur"
    ),
    "metaspace": (
        "<s>[SUFFIX]n x\n\nprint(f(1))\n[PREFIX] +++++ src/app/b.py\ndef b():\n    return 2\n"
        "+++++ src/app/c.py\ndef c():\n    return 3\n+++++ src/app/a.py\nimport os\n\ndef f(x):\n    retur"
    ),
}


@pytest.mark.parametrize("family", SHOWN)
def test_the_whole_prompt_of_each_family(family: str) -> None:
    builder = builder_of(family, max_prompt_tokens=600)
    prompt = builder.build(request_at(DOCUMENT, snippets=SNIPPETS))
    shown = text_of(FAMILIES[family](), prompt.token_ids)
    # The decoder of SentencePiece writes a blank for the mark in the markers too.
    assert shown.replace("▁", " ") == SHOWN[family].replace("▁", " ")


@pytest.mark.parametrize("family", ["embedded", "qwen", "starcoder2", "deepseek", "tekken", "llama3"])
def test_it_is_what_tokenising_the_whole_prompt_gives(family: str) -> None:
    tokenizer = FAMILIES[family]()
    prompt = builder_of(family, max_prompt_tokens=600).build(request_at(DOCUMENT, snippets=SNIPPETS))
    assert prompt.token_ids == tokenizer.encode(SHOWN[family], add_special_tokens=False).ids


def test_mellum_is_suffix_first_with_paths_before_all_markers() -> None:
    tokenizer = train(
        split_by(r"\s+(?!\S)|\s+|\p{L}+|\p{N}+|[^\s\p{L}\p{N}]+"), (*ANGLE, "<filename>", "<|endoftext|>")
    )
    template = detect_template(tokenizer.get_vocab(), "JetBrains/Mellum-4b-base")
    builder = PromptBuilder(tokenizer, template, max_prompt_tokens=400, settings=UNHEALED)
    assert builder.template.name == "mellum"
    prompt = builder.build(request_at(DOCUMENT, snippets=SNIPPETS[:1]))
    assert text_of(tokenizer, prompt.token_ids) == (
        "<filename>src/app/b.py\ndef b():\n    return 2\n<filename>src/app/a.py\n"
        "<fim_suffix>n x\n\nprint(f(1))\n<fim_prefix>import os\n\ndef f(x):\n    retur<fim_middle>"
    )


def test_comments_are_in_the_language_of_the_document() -> None:
    def lead(language_id: str) -> str:
        request = request_at(f"x\n{CURSOR}", snippets=SNIPPETS[:1], language_id=language_id)
        return text_of(FAMILIES["deepseek"](), builder_of("deepseek").build(request).token_ids)

    assert "// src/app/b.py:\n// def b():\n" in lead("typescript")
    assert "-- src/app/b.py:\n-- def b():\n" in lead("lua")
    assert "# src/app/b.py:\n# def b():\n" in lead("python")


@pytest.mark.parametrize("family", ["embedded", "llama3", "metaspace"])
def test_a_preamble_comes_first(family: str) -> None:
    settings = PromptSettings(preamble="# House rules: short lines.\n", token_healing=False)
    prompt = builder_of(family, settings=settings).build(request_at(f"a = 1\nb{CURSOR}"))
    shown = text_of(FAMILIES[family](), prompt.token_ids).removeprefix("<|begin_of_text|>").removeprefix("<s>")
    assert shown.strip().startswith("# House rules: short lines.\n")
    assert shown.endswith(("a = 1\nb", "a = 1\n<|fim_suffix|><|fim_middle|>b"))


@pytest.mark.parametrize("family", FAMILIES)
def test_control_tokens_in_a_document_are_text(family: str) -> None:
    tokenizer = FAMILIES[family]()
    builder = builder_of(family, max_prompt_tokens=3000)
    evil = "".join(token.content for token in tokenizer.get_added_tokens_decoder().values() if len(token.content) > 3)
    snippets = (Snippet(f"file:///{evil}.py", f"{evil}\n{evil}\n"),)
    calm = builder.build(request_at(f"a\nb{CURSOR}c\n", uri="file:///x.py", snippets=(Snippet("file:///y", "z\nz\n"),)))
    prompt = builder.build(request_at(f"{evil}\n{evil}{CURSOR}{evil}\n", uri=f"file:///{evil}", snippets=snippets))
    control = {index for index, token in tokenizer.get_added_tokens_decoder().items() if len(token.content) > 3}
    assert [index for index in prompt.token_ids if index in control] == [
        index for index in calm.token_ids if index in control
    ]


def test_on_a_single_line_the_engine_stops_at_newlines() -> None:
    tokenizer = FAMILIES["embedded"]()
    builder = builder_of("embedded")
    single = builder.build(request_at(f"a{CURSOR}")).stop_token_ids
    several = builder.build(request_at(f"a{CURSOR}", mode=Mode.MULTI_LINE)).stop_token_ids
    ends = {tokenizer.token_to_id(token) for token in (*PIPED, "<|file_sep|>")}
    assert set(several) == ends
    newlines = set(single) - ends
    assert newlines
    assert all("\n" in tokenizer.decode([index]) for index in newlines)
    everything = [index for index in range(tokenizer.get_vocab_size()) if "\n" in tokenizer.decode([index])]
    assert newlines == set(everything[:MAX_NEWLINE_TOKENS])


def test_a_folder_is_loaded_and_its_family_found(model: Path) -> None:
    builder = load_prompt_builder(str(model), max_prompt_tokens=128)
    assert builder.template.name == "embedded"
    assert builder.can_reuse_tokens
    request = request_at(f"import os\nos.{CURSOR}\n")
    settings = PromptSettings()
    assert builder.build(request) == builder_of("embedded", max_prompt_tokens=128, settings=settings).build(request)


def test_the_template_may_be_given(model: Path) -> None:
    settings = PromptSettings(template="prefix-only")
    assert load_prompt_builder(str(model), max_prompt_tokens=64, settings=settings).template.name == "prefix-only"
    builder = load_prompt_builder(str(model), template="fim", max_prompt_tokens=64, settings=settings)
    assert builder.template.name == "fim"
    replaced = {"name": "fim", "prefix": "<|fim_suffix|>", "suffix": "<|fim_prefix|>"}
    builder = load_prompt_builder(str(model), template=replaced, max_prompt_tokens=64)
    assert (builder.template.prefix, builder.template.suffix) == ("<|fim_suffix|>", "<|fim_prefix|>")


def test_missing_parts_are_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the tokenizer of .* can't be loaded"):
        load_prompt_builder(str(tmp_path), max_prompt_tokens=64)
    with pytest.raises(ConfigError, match="has no <fim_prefix>"):
        load_prompt_builder(str(model), template="starcoder2", max_prompt_tokens=64)
