"""The rules of lines: one line and nothing that stands right of the cursor, or a block and no line that follows."""

import textwrap

import pytest

from completion_server.core.request import Mode
from completion_server.text.rules.text import TextRules
from tests.unit.text.rules.rules import complete, request_at, sent


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
        ("x = f‸(b)\n", "(c)", ""),
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
        ('print(f"{a} is {‸}")\n', 'b} years old.")  # x', "b"),
        ('print(f"{‸}")\n', 'b.get({})}")', "b.get({})"),
        ('print(f"{‸} is")\n', "a:>10", "a:>10"),
        ("let s = `${f(‸)}`;\n", "a)} b`;", "a"),
        ("let s = `${f({ a: 1 }, ‸)}`;\n", "b)} c`;", "b"),
        ("print(f\"{d['‸']}\")\n", "key']:>10}\")", "key"),
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
        ("foo(‸, b)\n", "x=[1, 2], y=g(a, b)", "x=[1, 2], y=g(a, b)"),
    ],
)
def test_any_other_rest_of_the_line_is_not_repeated_at_the_end(document: str, text: str, expected: str) -> None:
    assert single(document, text) == expected


@pytest.mark.parametrize(
    ("document", "text", "expected"),
    [
        ("with op‸en(path) as f:\n", "en(path, 'r') as f:", ""),
        ("with op‸en(path) as f:\n", "en(path, 'r') as f:\n    x", ""),
        ("with ‸open(path) as f:\n", "open(path, 'r') as f:", ""),
        ("x = fo‸o.bar\n", "o.baz.bar", ""),
        ("y = ‸x + 1  # noqa\n", "x + 2  # noqa", ""),
        ("with op‸en(path) as f:\n", "en(a) as e, open(path) as f:", "en(a) as e, op"),
        ("with op‸en(path) as f:\n", "encode(path) as f:", "encode(path) as f:"),
        ("with op‸(path) as f:\n", "en(path, 'r') as f:", "en"),
        ("__‸all__ = ()\n", "all__ = x.__", "all__ = x.__"),
        ("f(‸a, b)\n", "a, c, ", "a, c, "),
        ("out(T x) -> (T y, T ‸x)\n", "x) z, T(y) ", "x) z, T(y) "),
        ("x = [\n    ‸1, 2,\n", "1, 3, ", "1, 3, "),
    ],
)
def test_a_line_that_begins_and_ends_like_the_rest_of_the_line_has_no_place_before_it(
    document: str, text: str, expected: str
) -> None:
    assert single(document, text) == expected


@pytest.mark.parametrize(
    ("document", "text", "expected", "language_id"),
    [
        ("if ‸:\n", "x > 0:  # don't ask\n    y", "x > 0", "python"),
        ("if ‸:  # noqa\n", "x > 0:", "x > 0", "python"),
        ("x = f(‸, 1)  # noqa\n", "a, 1)  # why", "a", "python"),
        ("const x = ‸;\n", 'f(1); // the "x"', "f(1)", "javascript"),
        ("  color: ‸;\n", "red; /* x */", "red", "css"),
        ("<p>‸</p>\n", "Hello</p> <!-- x -->", "Hello", "html"),
        ("if ‸; then\n", '[ -z "$1" ]; then  # none', '[ -z "$1" ]', "shellscript"),
        ("x = ‸, 1)\n", 'f(a, 1) + " # b"', 'f(a, 1) + " # b"', "python"),
        ("  border: 1px ‸;\n", "solid; #fff", "solid; #fff", "css"),
        ("f(‸,\n", "a, /* c */ b", "a, /* c */ b", "c"),
        ("x = ‸ / 2;\n", "a / 2; -- b", "a / 2; -- b", "c"),
        ("x = ‸  # noqa\n", "f(1)  # why", "f(1)  # why", "python"),
        ('x = "‸ # b"\n', "a # c", "a # c", "python"),
    ],
)
def test_a_comment_hides_no_repetition(document: str, text: str, expected: str, language_id: str) -> None:
    assert single(document, text, language_id=language_id) == expected


def test_a_comment_is_withheld_only_behind_a_repetition() -> None:
    pieces = ["y", " /", "/ 2"]
    assert sent(request_at("x = ‸;\n", language_id="c"), pieces) == ["y", " /", "/ 2", ""]
    assert sent(request_at("x = ‸ + 1\n", language_id="c"), ["y + 1", " /", " 2"]) == ["y", "", " + 1 / 2", ""]


@pytest.mark.parametrize(
    ("document", "text", "expected"),
    [
        ("foo(‸, b)\n", "a, c)", "a"),
        ("foo(‸, b)\n", "g(a, b), c) + 1", "g(a, b)"),
        ('d = {"a": ‸, "b": 2}\n', '"x, y", "b": 3}', '"x, y"'),
        ("with ‸ as f:\n", "open(path) as file:  # r", "open(path)"),
        ("with op‸ as f:  # r\n", "en(path) as file:", "en(path)"),
        ("for ‸ in items:\n", "i, item in enumerate(items):", "i, item"),
        ("x = [‸ for y in z]\n", "y for y in z if y]", "y"),
        ("if (‸ && b) {\n", "f(a && b) && c) {", "f(a && b)"),
        ("const ‸ = f(0);\n", "[a, b] = f(1);", "[a, b]"),
        ("foo(‸, b)\n", "a, c", "a, c"),
        ("foo(‸, b)\n", "a, c) + g(d", "a, c) + g(d"),
        ("foo(g(‸, b)\n", "a), h(c", "a), h(c"),
        ("foo(‸, b)\n", "g(a, c)", "g(a, c)"),
        ("for ‸ in items:\n", "x in y for z", "x in y for z"),
        ("x = ‸ if a else b\n", "c if d else e", "c if d else e"),
        ('x = "‸, b)"\n', "a, c)", "a, c)"),
        ("    ‸, b)\n", "a, c)", "a, c)"),
    ],
)
def test_a_changed_rest_that_begins_with_the_same_mark_is_not_shown(document: str, text: str, expected: str) -> None:
    assert single(document, text) == expected


def test_text_is_withheld_from_the_mark_of_a_rest_that_may_be_repeated_with_changes() -> None:
    pieces = ["g(a, c)", ", d", ")"]
    assert sent(request_at("f(‸, b)\n"), pieces) == ["g(a, c)", "", "", ""]
    assert sent(request_at("f‸, b\n"), pieces[:2]) == ["g(a, c)", ", d", ""]


def test_only_a_possible_repetition_is_withheld() -> None:
    request = request_at("x = ‸ + 1\n")
    assert sent(request, ["y", " ", "+", " 2", "0", " + 1"]) == ["y", "", "", " + 2", "0", "", ""]


def test_text_from_a_closing_bracket_on_is_withheld_to_the_end_of_its_line() -> None:
    rules = TextRules(request_at("f(‸)\n"))
    assert [rules.feed(piece) for piece in ["g", "(", "x", ")", ","]] == ["g", "(", "x", ")", ","]
    assert rules.feed(" y) + h") == " y"
    assert not rules.is_done
    assert rules.feed("(1)\n") == ") + h(1"
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


def multi(document: str, text: str, *, language_id: str = "python", is_cut: bool = False) -> str:
    request = request_at(document, mode=Mode.MULTI_LINE, language_id=language_id)
    return complete(request, text, is_cut=is_cut)


@pytest.mark.parametrize(
    ("document", "text", "expected"),
    [
        ("def f():‸\n", "\n    return 1\n\n\ndef g():\n", "\n    return 1"),
        (
            "def f‸\n",
            "(a):\n    if a:\n        b()\n    return 1\n\nf(2)\n",
            "(a):\n    if a:\n        b()\n    return 1",
        ),
        ("def f(a‸\n", ",\n      b):\n    return 1\nx = 2", ",\n      b):\n    return 1"),
        ("foo(‸\n", "\n    a,\n    b,\n)\nbar()", "\n    a,\n    b,\n)"),
        ("def f(‸\n", "\n    a,\n):\n    return a\n\ng()", "\n    a,\n):\n    return a"),
        ("if x:‸\n", "\n    a()\nelse:\n    b()\nc()", "\n    a()\nelse:\n    b()"),
        (
            "try:‸\n",
            "\n    a()\nexcept E:\n    b()\nfinally:\n    c()\nd()",
            "\n    a()\nexcept E:\n    b()\nfinally:\n    c()",
        ),
        ("if x:‸\nelse:\n    b()\n", "\n    a()\nelse:\n    b()\n", "\n    a()"),
        ("if x:‸\n", "\n    a()\nelsewhere = 1\n", "\n    a()"),
        ("x = foo()‸\n", "\n    .bar()\n    .baz()\ny = 1", "\n    .bar()\n    .baz()"),
        ("# Steps:‸\n", "\nx = 1\ny = 2", "\nx = 1\ny = 2"),
    ],
)
def test_a_cursor_line_that_opens_a_block_takes_its_body(document: str, text: str, expected: str) -> None:
    assert multi(document, text) == expected


@pytest.mark.parametrize(
    ("document", "text", "expected"),
    [
        ("def f():\n    ‸\n", "a = 1\n\n    return a\n\nf()", "a = 1\n\n    return a"),
        ("def f():\n    x = ‸\n", "1\n    return x\n\nf()", "1\n    return x"),
        ("def f():\n‸\n", "    a = 1\n    return a\n\nf()", "    a = 1\n    return a"),
        ("def f():\n    if x:\n        ‸\n", "a()\n    else:\n        b()", "a()"),
        ("def f():\n    ‸\n", "\n    return 1\nf()", "\n    return 1"),
        ("def f():\n    return 1\n    ‸\n", "\ndef g():", ""),
        ("x = 1\n‸\n", "def f():\n    return 1\n\ndef g():\n", "def f():\n    return 1"),
        ("x = 1\n‸\n", "y = 2\nz = 3\n", "y = 2\nz = 3"),
        ("class A:\n\tdef f(self):\n\t\t‸\n", "a()\n\t\treturn 1\n\tdef g", "a()\n\t\treturn 1"),
        ("class A:\n\tdef f(self):\n\t\t‸\n", "a()\n        return 1\n    def g", "a()\n        return 1"),
    ],
)
def test_a_cursor_inside_a_block_takes_the_rest_of_it(document: str, text: str, expected: str) -> None:
    assert multi(document, text) == expected


BRACES = [
    ("function f() {‸\n", "\n  return 1;\n}\n\nfunction g", "\n  return 1;\n}"),
    ("function f() {‸\n}\n", "\n  return 1;\n}\n\nfunction g", "\n  return 1;"),
    ("function f() {‸}\n", "\n  return 1;\n}\n\nfunction g", "\n  return 1;\n"),
    ("function f() {‸}\n", "\n  return 1;\n", "\n  return 1;\n"),
    ("function f() {‸}\n", " return {a: {}}; }", " return {a: {}}; "),
    ("function f() {\n  ‸\n}\n", "if (x) {\n    y();\n  }\n}\n", "if (x) {\n    y();\n  }"),
    ("function f() {\n  ‸\n", "if (x) {\n    y();\n  }\n}\ng();", "if (x) {\n    y();\n  }\n}"),
    ("function f() {\n  ‸\n  b();\n}\n", "a();\n}\n", "a();"),
    ("if (x) {‸\n", "\n  a();\n} else {\n  b();\n}\nc();", "\n  a();\n} else {\n  b();\n}"),
    ("foo(function() {‸)\n", "\n  a();\n})\nb();", "\n  a();\n}"),
    ("foo(function() {‸})\n", "\n  a();\n})\nb();", "\n  a();\n"),
    ("call(‸)\n", "a, b)\nbar()", "a, b"),
    ("call(‸)\n", "a, b\nbar()", "a, b"),
    ("{\n  if (x) {\n    a();\n  ‸\n  }\n}\n", "}\n}\n", ""),
    ("{\n  if (x) {\n    a();\n  ‸\n  }\n}\n", "if (y) {\n    b();\n  }\n  }\n", "if (y) {\n    b();\n  }"),
    ("{\n  if (x) {\n    ‸\n", "a();\n}\n", "a();"),
]


@pytest.mark.parametrize(("document", "text", "expected"), BRACES)
@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
def test_a_closing_brace_is_included_where_it_is_missing(
    document: str, text: str, expected: str, line_break: str
) -> None:
    document, text, expected = (part.replace("\n", line_break) for part in (document, text, expected))
    assert multi(document, text, language_id="javascript") == expected


def test_go_with_tabs_and_labels_at_the_depth_of_their_switch() -> None:
    text = "\n\tcase 1:\n\t\ta()\n\tdefault:\n\t\tb()\n\t}\n\treturn nil\n}\n"
    assert multi("func f() {\n\tswitch x {‸\n", text, language_id="go") == text[: text.index("\n\treturn")]
    assert multi("func f() {\n\tfor {\n\t\t‸\n\t}\n}\n", "a()\n\t}\n}\n", language_id="go") == "a()"


def test_a_closing_word_closes_where_the_language_has_them() -> None:
    assert multi("def f‸\n", "\n  1\nend\n\nf", language_id="ruby") == "\n  1\nend"
    assert multi("def f‸\nend\n", "\n  1\nend\n\nf", language_id="ruby") == "\n  1"
    assert multi("for x in y:‸\n", "\n    a()\nend = 1\n", language_id="python") == "\n    a()"


@pytest.mark.parametrize(
    ("document", "text", "expected"),
    [
        ("    a()\n    ‸\n    c(x)\n", "b()\n    c(x)\n    d()", "b()"),
        ("    a()\n    ‸\n    c(x)\n", "c(x)\n    d()", ""),
        ("    a()\n    ‸\n    c(x)\n", "b()\n\n    c(xy)\n", "b()\n\n    c(xy)"),
        ("    a()\n    ‸\n    c(x)\n", "if b:\n        c(x)\n", "if b:\n        c(x)"),
        ('    a()\n    ‸\n    """\n    b\n', 'x\n    """\n    b\n', "x"),
        ('    a()\n    ‸\n    """\n    b\n', 'x\n    """\n    c\n', 'x\n    """\n    c'),
        ("    a()\n    ‸\n    b()\n    c()\n    d()\n", "x()\n    b()\n    c()\n    d()\n", "x()"),
        ("    a()\n    ‸\n    b()\n    c()\n    d()\n", "x()\n    b()\n    e()\n", "x()\n    b()\n    e()"),
        ("    a()\n    ‸\n    b()\n    c()\n    d()\n", "x()\n    b()\n    c()", "x()"),
        ("    a()\n    ‸\n    b()\n    c()\n    d()\n", "x()\n    c()\n    d()\n", "x()\n    c()\n    d()"),
    ],
)
def test_lines_below_the_cursor_are_not_repeated(document: str, text: str, expected: str) -> None:
    assert multi(document, text) == expected


def test_the_length_limit_leaves_no_half_line() -> None:
    assert multi("def f():‸\n", "\n    a = 1\n    ret", is_cut=True) == "\n    a = 1"
    assert multi("def f():‸\n", "\n    a = 1\n\n", is_cut=True) == "\n    a = 1"
    assert multi("def f():‸\n", "\n    a = 1\n    ret", is_cut=False) == "\n    a = 1\n    ret"


def test_the_length_limit_leaves_no_branch_without_its_body() -> None:
    body = "\n    if a:\n        return a"
    assert multi("def f():‸\n", f"{body}\n    else:\n        ret", is_cut=True) == body
    assert multi("def f():‸\n", f"{body}\n    elif b:\n", is_cut=True) == body
    assert multi("def f():‸\n", f"{body}\n    else: return b\n    ret", is_cut=True) == f"{body}\n    else: return b"
    assert multi("def f():‸\n", f"{body}\n    else:", is_cut=False) == f"{body}\n    else:"
    assert multi("def f():‸\n", f"{body}\n    else:\n        b\n    c", is_cut=True) == f"{body}\n    else:\n        b"
    switch = "\n    a();\n    case 1:\n    case 2:\n        ret"
    assert multi("switch (x) {‸\n}\n", switch, language_id="c", is_cut=True) == "\n    a();"


@pytest.mark.parametrize(
    "text",
    [
        '\n    """Sum.\n\n    More.\n    """',
        "\n    if (\n        a\n    ):",
        "\n    a = 1\n    @property\n    def b(self):",
    ],
)
def test_the_length_limit_keeps_what_else_opens_a_block(text: str) -> None:
    assert multi("def f():‸\n", f"{text}\n        ret", is_cut=True) == text


def test_the_length_limit_keeps_a_half_line_that_is_the_only_one() -> None:
    assert multi("def f():‸\n", "\n    ret", is_cut=True) == "\n    ret"
    assert multi("x = ‸\n", "some_na", is_cut=True) == "some_na"


def test_the_first_line_streams_and_the_others_come_whole() -> None:
    request = request_at("def f():‸\n", mode=Mode.MULTI_LINE)
    pieces = ["\n", "    a", " = ", "1", "\n", "    b", " = 2", "\n", "\n"]
    assert sent(request, pieces) == ["", "\n    a", " =", " 1", "", "", "", "\n    b = 2", "", ""]


def test_the_end_of_the_block_shows_at_the_first_visible_character() -> None:
    rules = TextRules(request_at("def f():\n    ‸\n", mode=Mode.MULTI_LINE))
    assert rules.feed("return 1\n\n") == "return 1"
    assert not rules.is_done
    assert rules.feed("d") == ""
    assert rules.is_done


def test_a_line_at_the_openers_depth_is_decided_by_its_first_word() -> None:
    rules = TextRules(request_at("if x:‸\n", mode=Mode.MULTI_LINE))
    assert rules.feed("\n    a()\nelse") == "\n    a()"
    assert rules.feed("where") == ""
    assert not rules.is_done
    assert rules.feed(" ") == ""
    assert rules.is_done


def test_blank_lines_at_the_end_are_dropped() -> None:
    assert multi("x = 1‸\n", "0\ny = 2\n\n  \n\n") == "0\ny = 2"


def test_realistic_python_method() -> None:
    document = textwrap.dedent(
        '''\
        class Stack:
            """A stack."""

            def pop(self):‸

            def push(self, item):
                self.items.append(item)
        '''
    )
    body = "\n        if not self.items:\n            raise IndexError\n\n        return self.items.pop()"
    assert multi(document, body + "\n\n    def push(self, item):\n        self.items") == body


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ('app.get("/x", ‸);\n', "(req, res) => {\n  const x = f(req);\n  res.json(x);\n}"),
        ("const f = () => {‸};\n", "\n  const o = {a: 1};\n  return o;\n"),
        ("  items: [‸],\n", "\n    [1, 2],\n    [3, 4],\n  "),
        ("foo(‸),\n", "\n    a(1),\n    b(2),\n"),
    ],
)
def test_a_line_inside_that_ends_like_the_rest_of_the_line_does_not_end_the_completion(
    document: str, text: str
) -> None:
    assert multi(document, text, language_id="javascript") == text


@pytest.mark.parametrize(
    ("document", "text", "language_id"),
    [
        ('def f(path):\n    """Read."""\n‸', "    with open(path) as file:\n        a = 1\n    return a", "python"),
        ("function f() {\n  let a;\n‸", "  g(() => {\n    h();\n  });\n}", "javascript"),
    ],
)
def test_from_column_0_a_block_goes_on_as_deep_as_its_first_line(document: str, text: str, language_id: str) -> None:
    assert multi(document, f"{text}\n\nx = 1\n", language_id=language_id) == text
