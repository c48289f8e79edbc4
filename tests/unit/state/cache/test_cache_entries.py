"""Which requests a kept completion answers."""

import pytest

from completion_server.core.outcome import FinishReason
from completion_server.state.cache.entry import Terms
from tests.unit.state.cache.cache_parts import REQUEST, entry_of, request_of

MULTI_LINE = Terms()


@pytest.mark.parametrize(
    ("tail", "left"),
    [
        ("de", "f f():"),
        ("def ", "f():"),
        ("def f()", ":"),
        ("def f():", None),  # nothing is left
        ("def g", None),
        ("d", None),  # before the cursor of the completion
        ("", None),
        ("xde", None),
    ],
)
def test_a_completion_serves_those_who_type_it(tail: str, left: str | None) -> None:
    found = entry_of("de", "f f():").after(tail, MULTI_LINE)
    assert (found.text if found else None) == left


def test_an_empty_completion_serves_only_its_own_cursor() -> None:
    assert entry_of("x", "").after("x", MULTI_LINE) == entry_of("x", "")
    assert entry_of("x", "").after("xy", MULTI_LINE) is None


def test_a_completion_that_was_cut_off_serves_until_half_of_it_is_typed() -> None:
    cut = entry_of("", "abcdef", FinishReason.LENGTH)
    found = cut.after("abc", MULTI_LINE)
    assert found is not None
    assert (found.text, found.reason) == ("def", FinishReason.LENGTH)
    assert cut.after("abcd", MULTI_LINE) is None


def test_a_single_line_never_serves_behind_a_line_break() -> None:
    for line_break in ("\n", "\r", "\r\n"):
        entry = entry_of("x", f"a{line_break}b")
        assert entry.after(f"xa{line_break}", Terms(is_single_line=True)) is None
        assert entry.after(f"xa{line_break}", MULTI_LINE) is not None


def test_a_sample_serves_only_its_own_cursor() -> None:
    terms = Terms.of(request_of("x", sampling=REQUEST.sampling.__class__(0.5, seed=1)))
    assert entry_of("x", "abc").after("x", terms) is not None
    assert entry_of("x", "abc").after("xa", terms) is None


def test_typed_text_takes_its_share_of_the_cost_along() -> None:
    found = entry_of("", "abcd").after("a", MULTI_LINE)
    assert found is not None
    assert (found.num_prompt_tokens, found.num_completion_tokens, found.engine_s) == (100, 15, 0.375)
