"""The text rules read a bounded part of a document, which includes all text near the cursor."""

import pytest

from completion_server.core.request import Mode
from completion_server.streaming.brackets import Brackets
from completion_server.streaming.surroundings import MAX_HEAD, MAX_REST, Surroundings
from completion_server.streaming.text import TextRules
from tests.unit.streaming.rules import complete, request_at

LARGE = 512 * 1024
MINIFIED = "function f(a,b){return[a,{b:b}]};"
PIECES = ["a = b(", "c)", "\n", " )\n", "x\n", "  d\n", "e\n"]
EXTREMES = {
    "brackets that the rest closes": ("(" * 2000, "]" + "x" * 20_000),
    "all brackets": ("(" * LARGE, ")" * LARGE),
    "brackets and quotes": ("(" * LARGE, '"()\\"' * (LARGE // 5) + "]"),
    "one minified line": (MINIFIED * (LARGE // len(MINIFIED)), MINIFIED * (LARGE // len(MINIFIED))),
    "blanks": (" " * LARGE, "\t" * LARGE),
    "blank lines": ("\n" * LARGE, "\r\n" * (LARGE // 2)),
    "lines at one depth": ("if x:\n" + " a\n" * (LARGE // 3) + " ", "\n" + " b\n" * (LARGE // 3)),
    "a long line above": ("(" * LARGE + "\n    ", "\n" + "]" * LARGE),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize(("prefix", "suffix"), EXTREMES.values(), ids=EXTREMES)
def test_no_document_takes_long_to_read(prefix: str, suffix: str, mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    num_read = 0
    read_char = Brackets.read_char

    def counted(brackets: Brackets, char: str) -> None:
        nonlocal num_read
        num_read += 1
        read_char(brackets, char)

    monkeypatch.setattr(Brackets, "read_char", counted)
    rules = TextRules(request_at(f"{prefix}‸{suffix}", mode=mode))
    for piece in PIECES:
        if not rules.is_done:
            rules.feed(piece)
    generated = sum(map(len, PIECES))
    assert num_read <= 2 * MAX_HEAD + MAX_REST + 2 * generated


@pytest.mark.parametrize(("prefix", "suffix"), EXTREMES.values(), ids=EXTREMES)
def test_little_of_a_document_is_kept(prefix: str, suffix: str) -> None:
    around = Surroundings.of(request_at(f"{prefix}‸{suffix}"))
    assert len(around.head) <= MAX_HEAD
    assert len(around.rest) <= MAX_REST
    assert len(around.above) + sum(len(line.text) for line in around.below) <= 32_768


@pytest.mark.parametrize(
    ("document", "text", "expected"),
    [
        (MINIFIED * 10_000 + "f(‸);" + MINIFIED * 10_000, "g(x), y);", "g(x), y"),
        (MINIFIED * 10_000 + "f(‸)\n", "g(x))", "g(x)"),
        ("x = [" + "1, " * 50_000 + "‸]\n", "2, d[0]]", "2, d[0]"),
        ("y = 1\n" * 100_000 + "x = ‸ + 1\n" + "z = 2\n" * 100_000, "y + 1", "y"),
        ("y = 1\n" * 100_000 + "    a()\n    ‸\n    return x\n" + "z = 2\n" * 100_000, "return x\n", ""),
    ],
)
def test_the_rules_hold_at_the_cursor_of_a_large_document(document: str, text: str, expected: str) -> None:
    assert complete(request_at(document, language_id="javascript"), text) == expected


def test_a_long_line_keeps_its_depth() -> None:
    document = "def f():\n    x = [" + "1, " * 2000 + "‸\n"
    text = "2]\n    return x\n\ndef g():"
    assert complete(request_at(document, mode=Mode.MULTI_LINE), text) == "2]\n    return x"


def test_the_opener_is_found_above_blank_lines() -> None:
    document = "y = 1\n" * 10_000 + "def f():\n" + " \n" * 300 + "‸\n"
    assert complete(request_at(document, mode=Mode.MULTI_LINE), "    a()\n\nb()") == "    a()"
