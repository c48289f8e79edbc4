"""The forms of the models that write next edits, by examples after what was published of them."""

import pytest

from completion_server.core.diffs import parse_hunks
from completion_server.text.prompt.edits.answers import EditAnswer
from completion_server.text.prompt.edits.instinct import Instinct
from completion_server.text.prompt.edits.region import Reach, Region, find_region
from completion_server.text.prompt.edits.sweep import Sweep
from completion_server.text.prompt.edits.template import EditTemplate, Marker, ShownEdit, ShownSnippet, View
from completion_server.text.prompt.edits.zeta import Zeta2, Zeta21, block_starts
from tests.support.next_edits import request_at

DIFF = "@@ -1,2 +1,2 @@\n-def area(w, height):\n+def area(w, h):\n     # a rectangle\n"
DOCUMENT = "import math\n\ndef area(w, h):\n    return w * ‸height\n\nprint(1)\n"
NEAREST = Reach(1, 0)
TEMPLATES: tuple[EditTemplate, ...] = (Zeta2(), Zeta21(), Sweep(), Instinct())


def region_of(document: str, reach: Reach, template: EditTemplate | None = None) -> Region:
    region = find_region(request_at(document), reach, template.reserved if template else (), 512)
    assert region is not None
    return region


def view_of(document: str = DOCUMENT, reach: Reach = NEAREST) -> View:
    region = region_of(document, reach)
    edit = ShownEdit("src/app/a.py", DIFF, parse_hunks(DIFF))
    snippet = ShownSnippet("src/app/b.py", "def side():\n    ...\n")
    return View("src/app/a.py", region, region.above(9), region.below(9), [edit], [snippet])


def text_of(template: EditTemplate, view: View) -> str:
    return "".join(part.text if isinstance(part, Marker) else part for part in template.render(view))


def read(template: EditTemplate, region: Region, *pieces: str) -> object:
    answer = EditAnswer(template, region, 7)
    for piece in pieces:
        if not answer.is_done:
            assert answer.feed(piece) == ""
    return answer.edit and (answer.edit.first_line, answer.edit.line_count, answer.edit.text)


def test_zeta_2_has_the_region_between_the_markers_of_a_conflict() -> None:
    assert text_of(Zeta2(), view_of()) == (
        "<[fim-suffix]>\n\nprint(1)\n"
        "<[fim-prefix]><filename>src/app/b.py\ndef side():\n    ...\n\n"
        f"<filename>edit_history\n--- a/src/app/a.py\n+++ b/src/app/a.py\n{DIFF}\n"
        "<filename>src/app/a.py\nimport math\n\n"
        "<<<<<<< CURRENT\ndef area(w, h):\n    return w * <|user_cursor|>height\n=======\n"
        "<[fim-middle]>"
    )


def test_zeta_2_of_a_file_alone() -> None:
    region = region_of("x = 1‸", Reach(0, 0))
    assert text_of(Zeta2(), View("a.py", region)) == (
        "<[fim-suffix]>\n<[fim-prefix]><filename>a.py\n<<<<<<< CURRENT\nx = 1<|user_cursor|>\n=======\n<[fim-middle]>"
    )


def test_zeta_2_1_has_numbered_markers_around_blocks() -> None:
    assert text_of(Zeta21(), view_of()).endswith(
        "<filename>src/app/a.py\nimport math\n\n"
        "<|marker_1|>def area(w, h):\n    return w * <|user_cursor|>height<|marker_2|>\n<[fim-middle]>"
    )


def test_zeta_2_1_divides_long_regions() -> None:
    lines = [f"line{number}" for number in range(1, 9)]
    document = "\n".join(["‸", *lines[:6], "", *lines[6:]])
    assert text_of(Zeta21(), View("a.py", region_of(document, Reach(0, 9)))).endswith(
        "<|marker_1|><|user_cursor|>\nline1\nline2\nline3\nline4\nline5\nline6\n\n"
        "<|marker_2|>line7\nline8<|marker_3|>\n<[fim-middle]>"
    )


def test_the_cursor_before_a_block_stands_behind_the_block_before_it() -> None:
    document = "\n".join(["a"] * 7) + "\n\n‸b\nc"
    shown = text_of(Zeta21(), View("a.py", region_of(document, Reach(9, 9))))
    assert "a\n\n<|user_cursor|><|marker_2|>b\nc<|marker_3|>" in shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("a\n" * 5, []),
        ("a\n" * 6 + "\nb", [13]),
        ("a\n" * 6 + "\n}\nb", [15]),
        ("a\n" * 40, [32, 64]),
    ],
)
def test_blocks_begin_behind_blank_lines_with_code(text: str, expected: list[int]) -> None:
    assert block_starts(text) == expected


def test_sweep_has_the_window_before_the_last_edit_and_now() -> None:
    assert text_of(Sweep(), view_of("def area(w, h):\n    # a rectangle\n    return w * ‸height\n", Reach(9, 9))) == (
        "<|file_sep|>src/app/b.py\ndef side():\n    ...\n"
        "<|file_sep|>src/app/a.py.diff\n"
        "original:\ndef area(w, height):\n    # a rectangle\nupdated:\ndef area(w, h):\n    # a rectangle\n"
        "<|file_sep|>original/src/app/a.py\ndef area(w, height):\n    # a rectangle\n    return w * height\n"
        "<|file_sep|>current/src/app/a.py\ndef area(w, h):\n    # a rectangle\n    return w * height\n"
        "<|file_sep|>updated/src/app/a.py"
    )


def test_instinct_is_a_chat_with_sections() -> None:
    assert text_of(Instinct("Predict."), view_of()) == (
        "<|im_start|>system\nPredict.<|im_end|>\n"
        "<|im_start|>user\n"
        "### Context:\n\n<|context_file|> src/app/b.py\n<|snippet|>\ndef side():\n    ...\n\n\n\n"
        f'### User Edits:\n\nUser edited file "src/app/a.py"\n\n```diff\n{DIFF}```\n\n'
        '### User Excerpt:\n"src/app/a.py"\n\nimport math\n\n'
        "<|editable_region_start|>\ndef area(w, h):\n    return w * <|user_cursor_is_here|>height\n"
        "<|editable_region_end|>\n\nprint(1)\n<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


EDITED = (0, 1, "    return w * h\n")


@pytest.mark.parametrize(
    ("template", "answer", "expected"),
    [
        (Zeta2(), "def area(w, h):\n    return w * h<|user_cursor|>\n>>>>>>> UPDATED\n", EDITED),
        (Zeta2(), "def area(w, h):\n    return w * h\n", EDITED),
        (Zeta2(), "def area(w, h):\n    return w * height\n>>>>>>> UPDATED\n", None),
        (Zeta2(), "NO_EDITS\n>>>>>>> UPDATED\n", None),
        (Zeta2(), "", None),
        (Zeta2(), "<<<<<<< CURRENT\ndef area(w, h):\n    return w * h\n>>>>>>> UPDATED\n", None),
        (Zeta2(), "def <|user_cursor|>area(w, h):\n    return w<|user_cursor|> * h\n>>>>>>> UPDATED\n", None),
        (Zeta21(), "<|marker_1|>def area(w, h):\n    return w * h<|user_cursor|><|marker_2|>", EDITED),
        (Zeta21(), "<|marker_1|><|marker_1|><[end▁of▁sentence]>", None),
        (Zeta21(), "<|marker_1|>def area(w, h):\n    return w * h", None),
        (Zeta21(), "<|marker_1|>def area(w, h):\n    return w * h<|marker_3|>", None),
        (Zeta21(), "<|marker_0|>def area(w, h):\n    return w * h<|marker_2|>", None),
        (Zeta21(), "<|marker_1|>def area(w, h):\n<|marker_x|>    return w * h<|marker_2|>", None),
        (Sweep(), "\ndef area(w, h):\n    return w * h\n<|file_sep|>original/", EDITED),
        (Sweep(), "\ndef area(w, h):\n    return w * h", EDITED),
        (Sweep(), "def area(w, h):\n    return w * h", None),
        (Sweep(), "/other.py\ndef area(w, h):\n    return w * h", None),
        (Instinct(), "def area(w, h):\n    return w * h", EDITED),
        (Instinct(), "<|editable_region_start|>\ndef area(w, h):\n    return w * h\n<|editable_region_end|>", EDITED),
        (Instinct(), "def area(w, h):\n<|snippet|>    return w * h", None),
        (Instinct(), "\n\n", None),
        (Instinct(), "def area(w, h):\n    return w * height\n\n\n", None),
    ],
)
def test_answers_are_read_or_are_no_edit(template: EditTemplate, answer: str, expected: object) -> None:
    region = region_of(DOCUMENT, Reach(1, 0))
    assert read(template, region, answer) == expected
    assert read(template, region, *answer) == expected, "in pieces"


def test_zeta_2_1_writes_one_block_of_several() -> None:
    region = region_of("‸" + "a\n" * 6 + "\nb\nc", Reach(0, 9))
    assert read(Zeta21(), region, "<|marker_2|>b\nd<|marker_3|>") == (8, 1, "d")
    assert read(Zeta21(), region, "<|marker_1|>x\n<|marker_2|>") == (0, 7, "x\n")
    assert read(Zeta21(), region, "<|marker_1|>x\n\n<|marker_2|>y<|marker_3|>") == (0, 9, "x\n\ny")


def test_an_answer_without_a_line_break_does_not_join_lines() -> None:
    region = region_of("‸" + "a\n" * 6 + "\nb\nc", Reach(0, 9))
    assert read(Zeta21(), region, "<|marker_1|>x<|marker_2|>") == (0, 7, "x\n")


@pytest.mark.parametrize(
    ("document", "text", "expected"),
    [
        ("a‸\nb\n", "a\nB", (1, 1, "B\n")),
        ("a‸\nb", "a\nB", (1, 1, "B")),
        ("a‸\r\nb\r\n", "a\nx\nb", (1, 0, "x\r\n")),
        ("a‸\r\nb", "a\nb\nc", (1, 1, "b\r\nc")),
        ("a\nb‸", "a", (-1, 2, "a")),
        ("a\nb‸\n", "a", (0, 1, "")),
        ("a\n‸", "a\nb", (0, 1, "b")),
        ("a\r‸b\n", "a\nc", (0, 1, "c\n")),
        ("a\nb\r\nc‸", "a\nb\nd", (0, 1, "d")),
        ("a\nb\r\n‸c\n", "a\nd\nb\nc", (-1, 0, "d\n")),
    ],
)
def test_an_edit_is_the_fewest_whole_lines(document: str, text: str, expected: tuple[int, int, str]) -> None:
    region = region_of(document, Reach(9, 9))
    assert read(Instinct(), region, f"{text}\n<|editable_region_end|>") == expected


def test_a_token_ends_an_answer_like_a_stop_word() -> None:
    region = region_of("a‸\nb\n\nc\n", Reach(0, 2))
    assert region.text == "a\nb\n"
    answer = EditAnswer(Sweep(), region, 7)
    answer.feed("\na\nB\n\n")
    answer.finish(is_cut=False)
    assert answer.edit is not None
    assert (answer.edit.first_line, answer.edit.line_count, answer.edit.text) == (1, 1, "B\n")


def test_a_region_ends_before_a_marker_of_the_form() -> None:
    document = "a\n<|user_cursor|>\nb\n‸c\nd\n>>>>>>> UPDATED\ne\n"
    assert region_of(document, Reach(9, 9), Zeta2()).text == "b\nc\nd"
    assert region_of(document, Reach(9, 9), Sweep()).text.count("\n") == 6
    assert find_region(request_at("a <|user_‸cursor|>\n"), Reach(1, 1), Zeta2().words, 512) is None


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.name)
def test_a_region_ends_before_a_word_that_ends_answers(template: EditTemplate) -> None:
    for stop in template.stops:
        assert region_of(f"x = '{stop}'\na\n‸b\nc\ny = '{stop}'\n", Reach(9, 9), template).text == "a\nb\nc"


def test_a_region_has_the_lines_asked_for_that_the_model_can_repeat() -> None:
    document = "".join(f"line {at}\n" for at in range(9)) + "‸x\n" + "".join(f"line {at}\n" for at in range(9))

    def num_lines(num_tokens: int, **asked: int) -> tuple[int, int]:
        region = find_region(request_at(document, **asked), Reach(3, 4), (), num_tokens)
        assert region is not None
        return region.cursor - region.first, region.end - region.cursor - 1

    assert num_lines(512) == (3, 4)
    assert num_lines(512, lines_before=0, lines_after=1) == (0, 1)
    assert num_lines(512, lines_before=50, lines_after=50) == (9, 9)
    assert num_lines(11) == (1, 2)
    assert num_lines(1) == (0, 0)
    assert find_region(request_at("x" * 100 + "‸"), Reach(3, 4), (), 30) is None


def test_a_region_has_fewer_lines_of_a_script_with_a_token_a_character() -> None:
    def num_lines(line: str) -> int:
        region = find_region(request_at(f"{line}\n" * 20 + f"‸{line}\n" + f"{line}\n" * 20), Reach(20, 20), (), 60)
        assert region is not None
        return len(region.lines)

    assert num_lines("abcde") == 25
    assert num_lines("日本語の行") == 9


def test_only_the_text_near_the_cursor_is_read() -> None:
    far = "far\n" * 20_000
    region = region_of(f"{far}a\n‸b\nc\n{far}", Reach(1, 1))
    assert region.text == "a\nb\nc"
    assert len(region.near) < 20_000
    assert find_region(request_at("x" * 50_000 + "‸"), Reach(1, 1), (), 10**6) is None
    assert find_region(request_at("‸" + "x" * 50_000), Reach(1, 1), (), 10**6) is None


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.name)
def test_words_of_a_form_are_none_of_it_in_other_text(template: EditTemplate) -> None:
    for word in template.words:
        assert word not in template.shield(f"a{word}{word}b")
        assert len(template.shield(word)) == len(word) + 1
