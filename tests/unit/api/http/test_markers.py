"""Raw prompts of every family come apart into what they were made of."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_server.api.http.markers import Parts, take_apart, without_markers
from completion_server.core.request import Snippet
from completion_server.text.prompt.templates import FAMILIES, FimOrder, Template

BEFORE, AFTER = "def f(a):\n    return ", "\n\nprint(f(1))\n"
_SPACED = {"codellama"}


def raw_prompt(family: Template, before: str, after: str) -> str:
    """Return a prompt as plugins write it, without files."""
    prefix, suffix, middle = (each.replace("▁<", " <") for each in (family.prefix, family.suffix, family.middle))
    blank = " " if family.name in _SPACED else ""
    if family.order is FimOrder.SUFFIX_FIRST:
        return f"{suffix}{after}{prefix}{before}{middle}"
    return f"{prefix}{blank}{before}{suffix}{after}{middle}"


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_prompt_of_each_family_comes_apart(family: Template) -> None:
    assert take_apart(raw_prompt(family, BEFORE, AFTER)) == Parts(BEFORE, AFTER)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_an_empty_side_is_empty(family: Template) -> None:
    assert take_apart(raw_prompt(family, "", AFTER)) == Parts("", AFTER)
    assert take_apart(raw_prompt(family, BEFORE, "")) == Parts(BEFORE, "")


@given(st.sampled_from(FAMILIES), st.text("ab \n<|>", max_size=40), st.text("ab \n<|>", max_size=40))
def test_any_code_comes_back(family: Template, before: str, after: str) -> None:
    assert take_apart(raw_prompt(family, before, after)) == Parts(before, after)


@pytest.mark.parametrize(
    ("prompt", "parts"),
    [
        ("<fim_suffix>B<fim_prefix>A<fim_middle>", Parts("A", "B")),
        ("<fim_prefix><fim_suffix>B<fim_middle>A", Parts("A", "B")),  # StarCoder's own suffix-first form
        ("<|fim_prefix|>A\n<|fim_suffix|>B<|fim_middle|>typed", Parts("A\ntyped", "B")),
        ("<PRE> A <SUF>B <MID>", Parts("A", "B")),
        ("<s>[SUFFIX]B[PREFIX]A", Parts("A", "B")),
        ("<｜begin▁of▁sentence｜><｜fim▁begin｜>A<｜fim▁hole｜>B<｜fim▁end｜>", Parts("A", "B")),
        (
            "<|repo_name|>r\n<|file_sep|>x.py\nX\n<|file_sep|>y.py\n<|fim_prefix|>A<|fim_suffix|>B<|fim_middle|>",
            Parts("A", "B", "y.py", (Snippet("x.py", "X\n"),)),
        ),
        (
            "<|file_separator|>x.py\nX<|file_separator|>y.py\n<|fim_prefix|>A<|fim_suffix|>B<|fim_middle|>",
            Parts("A", "B", "y.py", (Snippet("x.py", "X"),)),
        ),
        (
            "<repo_name>r<file_sep>x.py\nX\n<file_sep><fim_prefix>y.py\nA<fim_suffix>B<fim_middle>",
            Parts("A", "B", "y.py", (Snippet("x.py", "X\n"),)),
        ),
        (
            "<filename>x.py\nX\n<filename>y.py\n<fim_suffix>B<fim_prefix>A<fim_middle>",
            Parts("A", "B", "y.py", (Snippet("x.py", "X\n"),)),
        ),
        (
            "[SUFFIX]B[PREFIX]+++++ x.py\nX\n+++++ y.py\nA",
            Parts("A", "B", "y.py", (Snippet("x.py", "X\n"),)),
        ),
        ("notes\n<|fim_prefix|>A<|fim_suffix|>B<|fim_middle|>", Parts("A", "B", "", (Snippet("", "notes\n"),))),
    ],
)
def test_files_and_other_orders(prompt: str, parts: Parts) -> None:
    assert take_apart(prompt) == parts


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        "x = ",
        "<|fim_prefix|>A",
        "<|fim_prefix|>A<|fim_suffix|>B",
        "<|fim_middle|>",
        "x = '[SUFFIX]'\ny = '[PREFIX]'\n",
        "x = '[PREFIX]'\ny = '[SUFFIX]'\n",
    ],
)
def test_a_prompt_without_all_markers_is_left_of_the_cursor(prompt: str) -> None:
    assert take_apart(prompt) == Parts(prompt)


def test_the_family_whose_marker_comes_first_counts() -> None:
    code = "A = '<fim_prefix><fim_suffix><fim_middle>'\n"
    assert take_apart(f"<|fim_prefix|>{code}<|fim_suffix|>B<|fim_middle|>") == Parts(code, "B")


def test_stop_strings_that_are_tokens_are_never_text() -> None:
    given_stops = ("<|endoftext|>", "<fim_middle>", "<MID>", "<EOT>", "</s>", "\n\n", "<file_sep>", "```")
    assert without_markers(given_stops) == ("\n\n", "```")
