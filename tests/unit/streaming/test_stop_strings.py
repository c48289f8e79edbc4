"""Stop strings, whole and in pieces."""

import pytest

from completion_server.core.request import Mode
from completion_server.streaming.stop_strings import StopStrings
from tests.unit.streaming.rules import complete, request_at, sent


@pytest.mark.parametrize(
    ("stop", "text", "expected"),
    [
        (("<EOT>",), "a < b<EOT>c", "a < b"),
        (("<EOT>",), "a<EO", "a<EO"),
        (("aab",), "aaab", "a"),
        (("abcd", "bc"), "abcd", "a"),
        (("bc", "abc"), "abc", ""),
        (("",), "abc", "abc"),
        (("日本",), "x日日本", "x日"),
    ],
)
def test_text_ends_before_the_first_stop_string(stop: tuple[str, ...], text: str, expected: str) -> None:
    assert complete(request_at("x = ‸\n", stop=stop), text) == expected


def test_only_the_longest_possible_beginning_is_withheld() -> None:
    stops = StopStrings(("<END>", "--"))
    assert [stops.feed(piece) for piece in ["a<", "EN", "<E", "X-", "y", "--z"]] == ["a", "", "<EN", "<EX", "-y", ""]
    assert stops.is_hit


def test_finish_returns_the_withheld_text() -> None:
    stops = StopStrings(("<END>",))
    assert stops.feed("a<EN") == "a"
    assert stops.finish() == "<EN"
    assert not stops.is_hit


def test_a_stop_string_across_lines_ends_a_multi_line_completion_on_a_whole_line() -> None:
    request = request_at("def f():‸\n", mode=Mode.MULTI_LINE, stop=("\n\n",))
    assert complete(request, "\n    a = 1\n    b = 2\n\n    c = 3") == "\n    a = 1\n    b = 2"


def test_text_before_a_stop_string_obeys_the_line_rules() -> None:
    request = request_at("f(‸)\n", stop=("#",))
    assert complete(request, "a)  # b") == "a"
    assert sent(request_at("x = ‸ + 1\n", stop=("#",)), ["y + 1", "  # b"]) == ["y", ""]
