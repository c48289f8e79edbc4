"""Rules of any completion: stop strings, repetition, and a bounded view of the document."""

import sysconfig
from pathlib import Path

import pytest

from completion_server.core.request import Mode
from completion_server.text.rules.brackets import Brackets
from completion_server.text.rules.surroundings import MAX_HEAD, MAX_REST, Surroundings
from completion_server.text.rules.text import StopStrings, TextRules
from tests.unit.text.rules.rules import complete, request_at, sent


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


def times(unit: str, number: int = 12) -> str:
    return unit * number


@pytest.mark.parametrize(
    ("document", "text", "expected"),
    [
        ("for i in ra‸", "nge(0" + times(", 1"), "nge(0, 1"),
        ("raise ValueErr‸", 'or(f"Cannot convert {type' + times("(getattr"), 'or(f"Cannot convert {type(getattr'),
        ("for i in range(len(‸", times("range(len("), "range(len("),
        ("    if c‸", "hunks" + times(" and len(chunks) == 1", 5), "hunks and len(chunks) == 1"),
        ("RECORD_SIZE_C‸", "CD" + times("_EXTRA_FIELD", 5), "CD_EXTRA_FIELD"),
        ("    def _‸", "mul(self, n" + times(", da"), "mul(self, n, da"),
        ("x = [base‸]\n", times(", prior"), ", prior"),
        ("#‸", " CFLAG: https://github.com" + times("/openai"), " CFLAG: https://github.com/openai"),
        ("e‸", "r" + times(", vg znu"), "r, vg znu"),
        ("HTTP_ENDPOINT = ‸", "HTTP_ENDPOINT" + times(">", 39), "HTTP_ENDPOINT>"),
        ("    return ‸", "C 32" + times("3", 40), "C 323"),
        ("x = ‸", "(release, versioninfo" + times(", machine"), "(release, versioninfo, machine"),
        ("x = '‸", "mpl" + times("/blake2/impl", 5), "mpl/blake2/impl"),
        ("x = (‸)\n", "((((((((((((((((((((", "("),
    ],
)
def test_a_run_ends_the_completion_after_its_first_unit(document: str, text: str, expected: str) -> None:
    for mode in Mode:
        assert complete(request_at(document, mode=mode), text, is_cut=True) == expected


def test_the_engine_is_stopped_where_a_run_is_too_long_for_a_person() -> None:
    rules = TextRules(request_at("for i in ra‸"))
    shown = [
        rules.feed(piece)
        for piece in ("nge", "(0", *["," if at % 2 else " 1" for at in range(1, 300)])
        if not rules.is_done
    ]
    assert rules.is_done
    assert "".join(shown) == "nge(0, 1"
    assert len(shown) < 170


@pytest.mark.parametrize("text", ["range(0" + times(", 1") + ")", "x = '" + times("ab/", 20) + "'"])
def test_a_run_that_ends_by_itself_is_kept(text: str) -> None:
    for mode in Mode:
        assert complete(request_at("‸\n", mode=mode), text) == text


def test_only_text_that_repeats_is_withheld() -> None:
    request = request_at("x = ‸")
    assert sent(request, ["f(a", ", b", ", c)"]) == ["f(a", ", b", ", c)", ""]
    assert sent(request, ["abc, ", "abc, ", "def"]) == ["abc,", "", " abc, def", ""]


@pytest.mark.parametrize(
    "text",
    [
        "[0, 0, 0, 0]", "(255, 255, 255)", "[[1, 0, 0], [0, 1, 0], [0, 0, 1]]", "f(g(h(i(x))))", "a.b.b.b.c", '"""',
        "# " + "-" * 78, "# " + "=" * 77, "....", '"ab" * 3 + "abab"', "__init__.__init__", "0x0000000000",
        "lambda x, y: x + y + x + y", "x" + " " * 40 + "# aligned",
    ],
)  # fmt: skip
def test_repetition_that_people_write_is_kept(text: str) -> None:
    assert complete(request_at("x = ‸\n"), text) == text


def test_lines_that_repeat_end_after_the_first() -> None:
    line = "    self.assertEqual(a, b)\n"
    document = "def test():\n    a = 1\n‸\n"
    assert complete(request_at(document, mode=Mode.MULTI_LINE), line * 6, is_cut=True) == line.rstrip()
    two = "    x = a\n    y = b\n"
    found = complete(request_at(document, mode=Mode.MULTI_LINE), two * 6, is_cut=True)
    assert found == two.rstrip()


def test_few_lines_of_real_code_look_like_runs() -> None:
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[::12]
    lines = [line for file in files for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]
    cut = [line for line in lines if complete_once(line) != line.rstrip()]
    assert len(lines) > 3000
    assert len(cut) / len(lines) < 0.002, cut


def complete_once(line: str) -> str:
    indent = line[: len(line) - len(line.lstrip())]
    return indent + "".join(sent(request_at(indent + "‸\n"), [line[len(indent) :]]))


@pytest.mark.parametrize(
    ("document", "text", "mode"),
    [
        ("x = ‸\n    y", "f(1, 2)  \nz", Mode.SINGLE_LINE),
        ("x = ‸\n    y", "f(1, 2)", Mode.MULTI_LINE),
        ("x = f(‸)\n", "1, [2]", Mode.MULTI_LINE),
        ("‸ + y\n", "f(1, 2)", Mode.SINGLE_LINE),
    ],
)
def test_a_plain_line_makes_no_rules_of_lines(
    document: str, text: str, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("completion_server.text.rules.text.LineRules")
    assert complete(request_at(document, mode=mode), text) == text.partition("\n")[0].rstrip()


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
    assert len(around.above) + len(around.below) <= 32_768


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
