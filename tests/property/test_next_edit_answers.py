"""Whatever a model wants to write: an edit that is applied gives the document that it meant, or there is no edit."""

import re

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from completion_server.core.diffs import plain_breaks
from completion_server.text.prompt.edits.answers import EditAnswer
from completion_server.text.prompt.edits.instinct import Instinct
from completion_server.text.prompt.edits.region import Reach, Region, find_region
from completion_server.text.prompt.edits.sweep import Sweep
from completion_server.text.prompt.edits.template import EditTemplate
from completion_server.text.prompt.edits.zeta import Zeta2, Zeta21
from tests.support.examples import examples
from tests.support.next_edits import CURSOR, answer_of, applied, request_at

TEMPLATES = {each.name: each for each in (Zeta2(), Zeta21(), Sweep(), Instinct())}
_BREAK = re.compile(r"\r\n|\r|\n")
STOPS = sorted({stop for template in TEMPLATES.values() for stop in template.stops})
LINES = st.sampled_from(
    [
        "",
        "a",
        "b",
        "    return x",
        "}",
        "é日本😀",
        "=======",
        "\tdef f():",
        "# <|fim|>",
        "NO",
        *(f"x {each}" for each in STOPS),
    ]
)
DOCUMENTS = (
    st.sampled_from([("\n", "\r\n"), ("\r",)])
    .flatmap(lambda breaks: st.lists(st.tuples(LINES, st.sampled_from(breaks)), max_size=24))
    .map(lambda lines: "".join(map("".join, lines)))
)
"""A "\\r" before a "\\n" would be one line break with it."""
NEW = st.lists(LINES, min_size=1, max_size=24)
PIECES = st.lists(
    st.sampled_from(
        [
            *("a", "\n", "\r\n", "x = 1\n", "NO_EDITS", " ", "=======\n", "    return x\n", "/other.py\n"),
            *("<<<<<<< CURRENT\n", ">>>>>>> UPDATED", "<|user_cursor|>", "<[fim-middle]>", "<[end▁of▁sentence]>"),
            *("<|marker_1|>", "<|marker_2|>", "<|marker_3|>", "<|marker_", "<|file_sep|>", "updated/a.py\n"),
            *("<|editable_region_start|>\n", "<|editable_region_end|>", "<|user_cursor_is_here|>", "<|im_end|>"),
        ]
    ),
    max_size=12,
).map("".join)


def region_at(document: str, place: float, template: EditTemplate) -> tuple[str, str, Region]:
    at = int(place * len(document))
    at += document[at - 1 : at + 1] == "\r\n"  # no editor has a cursor there
    prefix, suffix = document[:at], document[at:]
    region = find_region(request_at(f"{prefix}{CURSOR}{suffix}"), Reach(6, 8), template.reserved, 512)
    assume(region is not None)
    assert region is not None
    return prefix, suffix, region


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=examples(1.0))
@given(document=DOCUMENTS, last=LINES, place=st.floats(0, 1), new=NEW, size=st.integers(1, 9), adds=st.booleans())
@example(document="a\r\nb\r\n", last="", place=1.0, new=["a", "", "", "b"], size=3, adds=False)
@example(document="a\nx </s>\nb\n", last="", place=0.0, new=["c"], size=3, adds=True)
def test_an_applied_edit_gives_what_the_model_meant(
    name: str, document: str, last: str, place: float, new: list[str], size: int, adds: bool
) -> None:
    template = TEMPLATES[name]
    prefix, suffix, region = region_at(document + last, place, template)
    meant = "\n".join(new)
    assume(not any(word in meant for word in template.reserved))
    if adds:
        meant = f"{region.text}\n{meant}"
    assume(meant.strip() or not region.text.strip())
    assume(meant.rstrip("\n") != region.text.rstrip("\n"))
    assume(meant.strip() != "NO_EDITS")
    answer = EditAnswer(template, region, 7)
    written = answer_of(template, region, meant)
    for at in range(0, len(written), size):
        if not answer.is_done:
            answer.feed(written[at : at + size])
    edit = answer.edit
    assert edit is not None
    changed = plain_breaks(applied(prefix, suffix, edit))
    around = plain_breaks(prefix + suffix)
    before = "".join(f"{line.text}\n" for line in region.near[: region.first])
    behind = around[len(before) + len(region.text) :]
    assert changed == before + meant + behind


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=examples(1.0))
@given(document=DOCUMENTS, place=st.floats(0, 1), answer=PIECES)
def test_no_answer_brings_a_marker_or_leaves_the_region(name: str, document: str, place: float, answer: str) -> None:
    template = TEMPLATES[name]
    prefix, suffix, region = region_at(document, place, template)
    reader = EditAnswer(template, region, 7)
    reader.feed(answer)
    edit = reader.edit
    if edit is None:
        return
    assert not any(word in edit.text for word in template.reserved)
    assert region.first - region.cursor <= edit.first_line
    assert edit.first_line + edit.line_count <= region.end - region.cursor
    changed = applied(prefix, suffix, edit)
    assert changed != prefix + suffix
    assert set(_BREAK.findall(changed)) <= set(_BREAK.findall(prefix + suffix)) | {"\n"}
