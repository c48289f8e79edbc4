"""MULTI_LINE: to the end of the block, by indentation, and no line that already follows."""

import textwrap

import pytest

from completion_server.core.request import Mode
from completion_server.streaming.text import TextRules
from tests.unit.streaming.rules import complete, request_at, sent


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
        ("    a()\n    ‸\n    b()\n    c()\n    d()\n", "x()\n    c()\n    d()\n", "x()"),
        ("    a()\n    ‸\n    b()\n    c()\n    d()\n", "x()\n    c()\n    e()\n", "x()\n    c()\n    e()"),
        ("    a()\n    ‸\n    b()\n    c()\n    d()\n", "x()\n    c()", "x()\n    c()"),
    ],
)
def test_lines_below_the_cursor_are_not_repeated(document: str, text: str, expected: str) -> None:
    assert multi(document, text) == expected


def test_the_length_limit_leaves_no_half_line() -> None:
    assert multi("def f():‸\n", "\n    a = 1\n    ret", is_cut=True) == "\n    a = 1"
    assert multi("def f():‸\n", "\n    a = 1\n\n", is_cut=True) == "\n    a = 1"
    assert multi("def f():‸\n", "\n    a = 1\n    ret", is_cut=False) == "\n    a = 1\n    ret"


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
