"""A completion that repeats itself ends after the first time. The texts are completions of the embedded models."""

import sysconfig
from pathlib import Path

import pytest

from completion_server.core.request import Mode
from completion_server.streaming.text import TextRules
from tests.unit.streaming.rules import complete, request_at, sent


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


def test_the_engine_is_stopped_where_the_run_is_certain() -> None:
    rules = TextRules(request_at("for i in ra‸"))
    shown = [
        rules.feed(piece)
        for piece in ("nge", "(0", *["," if at % 2 else " 1" for at in range(1, 30)])
        if not rules.is_done
    ]
    assert rules.is_done
    assert "".join(shown) == "nge(0, 1"
    assert len(shown) < 20


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
