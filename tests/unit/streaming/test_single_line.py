"""SINGLE_LINE: one line, and nothing that already stands right of the cursor."""

import pytest

from completion_server.core.request import Mode
from completion_server.streaming.text import TextRules
from tests.unit.streaming.rules import complete, request_at, sent


def single(document: str, text: str, *, language_id: str = "python", is_cut: bool = False) -> str:
    return complete(request_at(document, language_id=language_id), text, is_cut=is_cut)


@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r"])
def test_ends_before_the_first_line_break(line_break: str) -> None:
    assert single("x = ‸\n", f"1 + 2{line_break}y = 3") == "1 + 2"


def test_a_completion_that_begins_with_a_line_break_is_empty() -> None:
    assert single("x = 1‸\n", "\ny = 2") == ""


@pytest.mark.parametrize(
    ("document", "text", "expected"),
    [
        ("foo(‸)\n", "a, b)", "a, b"),
        ("foo(‸)\n", "a, b", "a, b"),
        ("f(‸)\n", "g(x), y", "g(x), y"),
        ("f(‸)\n", "g(x))", "g(x)"),
        ("f(‸)\n", "g(x), h(y))\nz", "g(x), h(y)"),
        ("f(‸)\n", "g(x", "g(x"),
        ("foo(bar(‸)\n", "x))", "x)"),
        ("foo(bar(‸))\n", "x))", "x"),
        ("x = [foo(‸)]\n", "a)]", "a"),
        ("x = d[‸]\n", "k[0]]", "k[0]"),
        ("foo(‸);\n", "a);", "a"),
        ("foo(‸);\n", "a)", "a"),
        ("foo( ‸ )\n", "a )", "a"),
        ("if (a‸) {\n", " && f(b)) {", " && f(b)"),
        ("def f(‸):\n", "a) -> int:", "a"),
        ("    b,‸)\n", " c)", " c"),
        ("foo(‸) # don't\n", "a)", "a"),
    ],
)
def test_a_closing_bracket_right_of_the_cursor_is_not_repeated(document: str, text: str, expected: str) -> None:
    assert single(document, text) == expected


@pytest.mark.parametrize(
    ("document", "text", "expected"),
    [
        ("found.append‸(\n", '(f"{name}/{name}")', ""),
        ("found.app‸(\n", 'end(f"{name}/{name}")', "end"),
        ("found.app‸(name)\n", "end(name)", "end"),
        ("found.app‸(name)\n", "end(f(x))", "end"),
        ("x = d‸[0]\n", "ata[1]", "ata"),
        ("x = f()‸[0]\n", "[1]", ""),
        ("class A ‸{\n", "extends B {", "extends B "),
        ("x = ‸(a, b)\n", "(1, 2) + ", "(1, 2) + "),
        ("x = ‸(a, b)\n", "[f(1)] + ", "[f(1)] + "),
        ("x = g‸ (a)\n", "(b) + h", "(b) + h"),
        ('x = f("a‸(b")\n', "(c", ""),
        ("x ‸=\n", "= 5", ""),
        ("x‸=\n", "yz", "yz"),
        ("f(a‸,\n", ", b", ""),
        ("x = ‸#\n", "# 1", ""),
    ],
)
def test_an_opening_bracket_or_a_single_character_right_of_the_cursor_is_not_repeated(
    document: str, text: str, expected: str
) -> None:
    assert single(document, text) == expected


@pytest.mark.parametrize(
    ("document", "text", "expected"),
    [
        ("f(‸)\n", '")", x)', '")", x'),
        ("f(‸)\n", r'"\")", x)', r'"\")", x'),
        ("f(‸)\n", "':)')", "':)'"),
        ('print("‸")\n', 'hello")', "hello"),
        ('print("‸")\n', 'say (\\"hi\\")")', 'say (\\"hi\\")'),
        ('print("abc‸)\n', 'def")', 'def"'),
        ("let s = `‸`;\n", "${a}`;", "${a}"),
    ],
)
def test_brackets_in_quotes_do_not_count_and_quotes_close_like_brackets(
    document: str, text: str, expected: str
) -> None:
    assert single(document, text) == expected


def test_an_apostrophe_is_part_of_a_name_where_the_language_says_so() -> None:
    assert single("fn f(‸) {\n", "x: &'a str) {", language_id="rust") == "x: &'a str"


@pytest.mark.parametrize(
    ("document", "text", "expected"),
    [
        ("x = ‸ + 1\n", "y + 1", "y"),
        ("x = ‸ + 1\n", "y + 1 + 1", "y + 1"),
        ("x = ‸ + 1\n", "y + 2", "y + 2"),
        ("x = ‸ + 1\n", "y + 1  \nz", "y"),
        ("foo(‸a, b)\n", "x, a, b)", "x, "),
        ("foo(‸x)\n", "max)", "max)"),
        ("for i in ran‸ge(10):\n", "ge(10):", ""),
        ("call(ma‸x)\n", "gic_x)", "gic_"),
        ("if x‸:\n", " > 0:", " > 0"),
        ("foo()‸;\n", ".bar();", ".bar()"),
        ("<b>‸</b>\n", "<i>x</i></b>", "<i>x</i>"),
        ("x = ‸  # noqa\n", "compile(y)  # noqa", "compile(y)"),
        ("x = ‸# noqa\n", "1  ", "1  "),
    ],
)
def test_any_other_rest_of_the_line_is_not_repeated_at_the_end(document: str, text: str, expected: str) -> None:
    assert single(document, text) == expected


def test_only_a_possible_repetition_is_withheld() -> None:
    request = request_at("x = ‸ + 1\n")
    assert sent(request, ["y", " ", "+", " 2", "0", " + 1"]) == ["y", "", "", " + 2", "0", "", ""]


def test_a_closing_bracket_ends_it_at_once_and_withholds_nothing() -> None:
    rules = TextRules(request_at("f(‸)\n"))
    assert [rules.feed(piece) for piece in ["g", "(", "x", ")", ","]] == ["g", "(", "x", ")", ","]
    assert not rules.is_done
    assert rules.feed(" y) + 1") == " y"
    assert rules.is_done


@pytest.mark.parametrize(
    ("document", "text", "expected"),
    [
        ("    a()\n    ‸\n    return x\n", "return x\n", ""),
        ("    a()\n    ‸\n\n    return x\n", "return x", ""),
        ("    a()\n    ‸\n    return x\n", "return x + 1", "return x + 1"),
        ("    a()\n    ‸\n    return x\n", "return", "return"),
        ("    a()\n    ‸\nreturn x\n", "return x", "return x"),
        ("    a()\n‸\n    return x\n", "    return x", ""),
        ("    a()\n    ret‸\n    return x\n", "urn x", "urn x"),
        ("    a()\n\t‸\r\n\treturn x\r\n", "return x\r\n", ""),
    ],
)
def test_a_whole_line_does_not_repeat_the_line_below(document: str, text: str, expected: str) -> None:
    assert single(document, text) == expected


def test_blanks_at_the_end_are_dropped_where_nothing_needs_them() -> None:
    assert single("x =‸\n", " 1  \t") == " 1"
    assert single("    ‸\n", "    ") == ""
    assert single("foo(‸bar)\n", "a, ") == "a, "


def test_the_length_limit_keeps_the_half_line_it_has() -> None:
    assert single("x = ‸\n", "some_na", is_cut=True) == "some_na"
    assert single("x = ‸ + 1\n", "y +", is_cut=True) == "y +"


def test_text_right_of_the_cursor_keeps_multi_line_to_the_line() -> None:
    request = request_at("x = ‸ + 1\n", mode=Mode.MULTI_LINE)
    assert complete(request, "y\nz = 3") == "y"


def test_text_after_the_end_is_a_bug_of_the_caller() -> None:
    rules = TextRules(request_at("x = ‸\n"))
    rules.feed("1\n")
    assert rules.is_done
    with pytest.raises(RuntimeError, match="has ended"):
        rules.feed("2")
    with pytest.raises(RuntimeError, match="has ended"):
        rules.finish(is_cut=False)
