"""Each measure of an answer, on texts for which its value is known."""

import pytest

from loadtest.bench.quality.cursors import Cursor
from loadtest.bench.quality.measures import MEASURES, measure


def at(before: str, truth: str, after: str = "\n", *, language: str = "python", kind: str = "gap") -> Cursor:
    about = {"set": "files", "path": "a", "digest": "", "licence": "", "language": language, "kind": kind}
    return Cursor(**about, before=before, truth=truth, after=after)


CALL = at("x = ", "scale(width, 3)")
WORD = at("    retu", "rn area", kind="word")
BODY = at("def f():\n    ", "a = 1\n    return a", "\n\nlast = 2\n", kind="body")


@pytest.mark.parametrize(
    ("cursor", "answer", "expected"),
    [
        (CALL, "scale(width, 3)", {"exact": 1, "first_word": 1, "agreed": 1}),
        (CALL, "scale(width, 3)  ", {"exact": 1}),
        (CALL, "scale(height)", {"exact": 0, "first_word": 1, "agreed": 6 / 15}),
        (CALL, "scaled(width, 3)", {"first_word": 0, "agreed": 5 / 15}),
        (CALL, "sca", {"first_word": 0, "agreed": 3 / 15}),
        (CALL, " scale(width, 3)", {"exact": 0, "first_word": 0, "agreed": 0}),
        (CALL, "", {"exact": 0, "first_word": 0, "agreed": 0, "empty": 1, "broken": 0, "doubled": 0}),
        (CALL, "  ", {"empty": 1}),
        (WORD, "rn area", {"exact": 1, "first_word": 1}),
        (WORD, "rn None", {"exact": 0, "first_word": 1}),
        (WORD, "rns area", {"first_word": 0}),
        (at("f(a", "): # ", "\n"), "): pass", {"first_word": 1}),
        (at("f(a", ");", "\n"), "))", {"first_word": 0}),
        (BODY, "a = 1\n    return b", {"exact": 1, "first_word": 1, "agreed": 17 / 18}),
        (BODY, "a = 2\n    return a", {"exact": 0, "agreed": 4 / 18}),
    ],
)
def test_an_answer_is_compared_with_the_text_of_the_file(
    cursor: Cursor, answer: str, expected: dict[str, float]
) -> None:
    found = measure(cursor, answer)
    assert tuple(found) == MEASURES
    assert {name: found[name] for name in expected} == pytest.approx(expected)


QUOTE = at("name = '", "first", "'\n", kind="closer")
BRACKET = at("f(", "g(1)", ")\n", kind="closer")


@pytest.mark.parametrize(
    ("cursor", "answer", "is_doubled"),
    [
        (BRACKET, "g(1)", False),
        (BRACKET, "g(1))", True),
        (BRACKET, "1) + 2", True),
        (QUOTE, "first", False),
        (QUOTE, "first'", True),
        (QUOTE, "it\\'s", False),
        (CALL, "x = scale(width, 3)", True),
        (WORD, "return area", True),
        (WORD, "rn retu", False),
        (at("a = 1\nbc = ", "2"), "bc", False),
        (at("go(1)\n", "go(2)"), "go(1)", True),
        (at("go(1)\n", "go(1)"), "go(1)", False),
        (at("}\n", "}", language="css"), "}", False),
        (at("a = 1\n", "b = 2", "\nlast = 3\n"), "last = 3", True),
        (BODY, "a = 1\n    return a\n\nlast = 2", True),
        (BODY, "a = 1\n    return last", False),
        (at("f() {\n  ", "go();", "\n}\n", language="javascript", kind="body"), "go();\n}", True),
        (at("f() {\n  ", "go();", "\n", language="javascript", kind="body"), "go();\n\n", False),
    ],
)
def test_text_around_the_cursor_is_not_to_be_written_again(cursor: Cursor, answer: str, is_doubled: bool) -> None:
    assert measure(cursor, answer)["doubled"] == is_doubled


@pytest.mark.parametrize(
    ("cursor", "answer", "is_broken"),
    [
        (CALL, "scale(height)", False),
        (CALL, "scale(height", True),
        (BRACKET, "g(2", True),
        (at("if f(", "g(1)", ")\n    pass\n", kind="closer"), "g(2)", False),
        (at("let a = ", "1;", language="typescript"), "{b: 1;", True),
        (at('{"a": ', "1", "\n}\n", language="json"), '{"b": 2}', False),
        (at('{"a": ', "1", "\n}\n", language="json"), '{"b" 2', True),
        (at("a {\n  ", "top: 0;", "\n}\n", language="css"), "left: 1px;", False),
        (at("<p>", "one</p>", "\n", language="html"), "two</p", True),
        (at("a: ", "1", "\n", language="yaml"), "[1, 2", True),
        (at("int a = ", "1;", "\n", language="c"), "f(1;", True),
        (at("auto a = ", "1;", "\n", language="cpp"), "std::max(1, 2);", False),
        (at("var a = ", "1;", language="javascript"), "f(1;", True),
        (at("# ", "One", "\n", language="markdown"), "Two", False),
    ],
)
def test_an_answer_breaks_the_syntax_of_a_file_that_its_own_text_does_not(
    cursor: Cursor, answer: str, is_broken: bool
) -> None:
    assert measure(cursor, answer)["broken"] == is_broken
