"""The whole prompts of each family equal the formats in the models' cards."""

import pytest

from completion_server.core.request import Mode, Snippet
from completion_server.prompt.builder import PromptBuilder
from completion_server.prompt.detection import detect_template
from completion_server.prompt.settings import PromptSettings
from completion_server.prompt.templates import FAMILIES as TEMPLATES
from completion_server.prompt.tokens.stops import MAX_NEWLINE_TOKENS, newline_token_ids
from tests.support.vocabularies import ANGLE, FAMILIES, PIPED, VOCABULARY_SIZE, split_by, train
from tests.unit.prompt.prompts import CODE, CURSOR, builder_of, request_at, text_of

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
        "<|fim_prefix|>import os\n\ndef f(x):\n<|fim_suffix|>n x\n\nprint(f(1))\n<|fim_middle|>    retur"
    ),
    "starcoder2": (
        "<file_sep>src/app/b.py\ndef b():\n    return 2\n<file_sep>src/app/c.py\ndef c():\n    return 3\n<file_sep>"
        "<fim_prefix>src/app/a.py\nimport os\n\ndef f(x):\n<fim_suffix>n x\n\nprint(f(1))\n<fim_middle>    retur"
    ),
    "deepseek": (
        "<｜fim▁begin｜># src/app/b.py:\n# def b():\n#     return 2\n# src/app/c.py:\n# def c():\n#     return 3\n"
        "import os\n\ndef f(x):\n<｜fim▁hole｜>n x\n\nprint(f(1))\n<｜fim▁end｜>    retur"
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
        "<|fim_prefix|>import os\n\ndef f(x):\n<|fim_suffix|>n x\n\nprint(f(1))\n<|fim_middle|>    retur"
    ),
    "llama2": (
        "<s>▁<PRE> # src/app/b.py:\n# def b():\n#     return 2\n# src/app/c.py:\n# def c():\n#     return 3\n"
        "import os\n\ndef f(x):\n▁<SUF>n x\n\nprint(f(1))\n▁<MID>    retur"
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
    builder = PromptBuilder(tokenizer, template, max_prompt_tokens=400)
    assert builder.template_name == "mellum"
    prompt = builder.build(request_at(DOCUMENT, snippets=SNIPPETS[:1]))
    assert text_of(tokenizer, prompt.token_ids) == (
        "<filename>src/app/b.py\ndef b():\n    return 2\n<filename>src/app/a.py\n"
        "<fim_suffix>n x\n\nprint(f(1))\n<fim_prefix>import os\n\ndef f(x):\n<fim_middle>    retur"
    )


def test_without_snippets_no_file_is_named() -> None:
    prompt = builder_of("qwen").build(request_at(f"a\nb{CURSOR}"))
    assert text_of(FAMILIES["qwen"](), prompt.token_ids) == "<|fim_prefix|>a\n<|fim_suffix|><|fim_middle|>b"


def test_comments_are_in_the_language_of_the_document() -> None:
    def lead(language_id: str) -> str:
        request = request_at(f"x\n{CURSOR}", snippets=SNIPPETS[:1], language_id=language_id)
        return text_of(FAMILIES["deepseek"](), builder_of("deepseek").build(request).token_ids)

    assert "// src/app/b.py:\n// def b():\n" in lead("typescript")
    assert "-- src/app/b.py:\n-- def b():\n" in lead("lua")
    assert "# src/app/b.py:\n# def b():\n" in lead("python")


@pytest.mark.parametrize("family", ["embedded", "llama3", "metaspace"])
def test_a_preamble_comes_first(family: str) -> None:
    settings = PromptSettings(preamble="# House rules: short lines.\n")
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


def test_newlines_of_sentencepiece_are_bytes() -> None:
    stops = builder_of("llama2").build(request_at(f"a{CURSOR}")).stop_token_ids
    tokenizer = FAMILIES["llama2"]()
    assert {tokenizer.token_to_id(token) for token in ("<0x0A>", "▁<EOT>", "▁<PRE>", "▁<SUF>", "▁<MID>")} == set(stops)


def test_at_most_256_newline_tokens() -> None:
    vocabulary = {f"{'Ċ' * (1 + number % 3)}{number}": number for number in range(VOCABULARY_SIZE)}
    ids = newline_token_ids(FAMILIES["embedded"](), vocabulary)
    assert ids == tuple(range(MAX_NEWLINE_TOKENS))


def test_every_template_is_shown_in_these_tests() -> None:
    tested = {"mellum", *(builder_of(family).template_name for family in SHOWN)}
    assert {template.name for template in TEMPLATES} - tested == {"granite", "granite4", "fim"}, "these are as embedded"


def test_a_long_document_is_real_code() -> None:
    prompt = builder_of("embedded", max_prompt_tokens=200).build(request_at(CODE[:9000] + CURSOR + CODE[9000:]))
    assert len(prompt.token_ids) <= 200
