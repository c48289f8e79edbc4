"""Properties of the text rules for any text in any pieces."""

import dataclasses

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from completion_server.core.request import Caller, Mode, Request
from completion_server.text.rules.text import TextRules
from tests.property.plain_runs import first_loop, length_of_run, repeating_texts, run_at, split
from tests.support.examples import examples

FRAGMENTS = [
    "a", "b", "x", "é", "👩", "(", ")", "[", "]", "{", "}", ":", ",", '"', "'", "\\", "<", "/", "#", ";", " ", "  ",
    "    ", "\t", "\n", "\r\n", "\r", "else", "elif x:", "end", "case", "default", "def f():", "return", "} else {",
    "foo(a)", "STOP", "ST", "日本",
    ">", "`", '""', "%", "{%", "@", "\u0e33", "\u103a", "endif", "</a>", "<a",
]  # fmt: skip
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=24).map("".join)
short_texts = st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join)
stops = st.lists(st.sampled_from(["STOP", "ST", "\n\n", "日本", ")", "TO"]), max_size=2).map(tuple)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    return Request(
        id="r1",
        caller=Caller("ada", "s1"),
        sequence=1,
        document_uri="file:///a",
        language_id=draw(
            st.sampled_from(["", "python", "javascript", "rust", "ruby", "html", "markdown", "shellscript"])
        ),
        prefix=draw(short_texts),
        suffix=draw(short_texts),
        max_tokens=64,
        received_at=0.0,
        mode=draw(st.sampled_from(Mode)),
        stop=draw(stops),
    )


REQUEST = Request("r1", Caller("ada", "s1"), 1, "file:///a", "python", "def add(a, b):\n    return ", "", 64, 0.0)


def run(request: Request, pieces: list[str], *, is_cut: bool) -> tuple[str, int | None]:
    """Return all that is sent, and the number of characters fed when a rule ended the completion."""
    rules = TextRules(request)
    sent = ""
    num_fed = 0
    for piece in pieces:
        sent += rules.feed(piece)
        num_fed += len(piece)
        if rules.is_done:
            return sent, num_fed
    return sent + rules.finish(is_cut=is_cut), None


@example(request=dataclasses.replace(REQUEST, prefix="", suffix="aa"), text=" / aa / aa / aa ", cuts=[], is_cut=False)
@settings(max_examples=examples(4))
@given(
    request=requests(),
    text=texts | repeating_texts(),
    cuts=st.lists(st.integers(0, 1000), max_size=12),
    is_cut=st.booleans(),
)
def test_the_total_does_not_depend_on_the_pieces(request: Request, text: str, cuts: list[int], *, is_cut: bool) -> None:
    whole, whole_end = run(request, [text] if text else [], is_cut=is_cut)
    pieces, pieces_end = run(request, split(text, cuts), is_cut=is_cut)
    chars, chars_end = run(request, list(text), is_cut=is_cut)
    assert whole == pieces == chars
    assert (whole_end is None) == (pieces_end is None) == (chars_end is None)
    if chars_end is not None and pieces_end is not None:
        assert chars_end <= pieces_end


@example(request=dataclasses.replace(REQUEST, mode=Mode.MULTI_LINE), text="a\r    b\rc", cuts=[1], is_cut=False)
@example(request=dataclasses.replace(REQUEST, prefix="a\n", suffix="\nb"), text="b", cuts=[], is_cut=False)
@settings(max_examples=examples(4))
@given(
    request=requests(),
    text=texts | repeating_texts(),
    cuts=st.lists(st.integers(0, 1000), max_size=12),
    is_cut=st.booleans(),
)
def test_rules_of_lines_that_begin_late_send_what_they_send_from_the_start(
    request: Request, text: str, cuts: list[int], *, is_cut: bool
) -> None:
    rules, eager = TextRules(request), TextRules(request)
    eager._lines = eager._make_lines()
    for piece in split(text, cuts):
        assert rules.feed(piece) == eager.feed(piece)
        assert rules.is_done == eager.is_done
        if rules.is_done:
            return
    assert rules.finish(is_cut=is_cut) == eager.finish(is_cut=is_cut)


@settings(max_examples=examples(2))
@given(
    line=repeating_texts().map(lambda text: text.replace("\n", " ")),
    cuts=st.lists(st.integers(0, 1000), max_size=12),
    suffix=st.sampled_from(("", "\n", "  \n")),
    mode=st.sampled_from(Mode),
    is_cut=st.booleans(),
)
def test_a_line_without_a_loop_is_shown_whole_and_ended_by_no_rule(
    line: str, cuts: list[int], suffix: str, mode: Mode, is_cut: bool
) -> None:
    assume(first_loop(line) is None and not (is_cut and run_at(line, length_of_run)))
    request = dataclasses.replace(REQUEST, suffix=suffix, mode=mode)
    assert run(request, split(line, cuts), is_cut=is_cut) == (line.rstrip(), None)


@settings(max_examples=examples(4))
@given(requests(), texts | repeating_texts(), st.booleans())
def test_the_sent_text_is_a_beginning_of_the_text_by_the_plain_rules(request: Request, text: str, is_cut: bool) -> None:
    sent, _ = run(request, list(text), is_cut=is_cut)
    assert text.startswith(sent)
    assert sent.encode().decode() == sent
    assert not any(stop in sent for stop in request.stop)
    if request.mode is Mode.SINGLE_LINE:
        assert "\n" not in sent
        assert "\r" not in sent
    if not request.suffix.partition("\n")[0].strip():
        assert sent == sent.rstrip()


@settings(max_examples=examples(2))
@given(requests(), texts)
def test_the_length_limit_leaves_one_half_line_at_most_as_the_only_one(request: Request, text: str) -> None:
    cut, end = run(request, list(text), is_cut=True)
    if request.mode is Mode.MULTI_LINE and end is None and len(cut) < len(text) and len(cut.splitlines()) > 1:
        lines = [line for line in cut.replace("\r", "\n").split("\n") if line.strip()]
        followed_by_break = text[len(cut) :].lstrip(" \t").startswith(("\n", "\r"))
        assert len(lines) <= 1 or followed_by_break
