"""Recent edits are diffs that make the document again, and least edits do the same as the edits that they come from."""

import re
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from completion_client.editing import LineEdit, RecentEdits, RecentEditSettings
from completion_client.editing.line_edits import fitted, lines_of
from tests.support.examples import examples

ALL = RecentEditSettings(num_edits=1000, merge_ms=10, merge_lines=1, context_lines=2, budget_bytes=1_000_000)
LINES = st.lists(st.sampled_from(("a\n", "b\n", "c\n", "\n")), max_size=8)
HEAD = re.compile(r"@@ -(\d+),(\d+) \+(\d+),(\d+) @@\n")


def patched(lines: Sequence[str], diff: str) -> list[str]:
    """Return a document after a hunk, as patch would make it."""
    head = HEAD.match(diff)
    assert head is not None, diff
    start, num_old, _, num_new = map(int, head.groups())
    body = lines_of(diff[head.end() :])
    old = [each[1:] for each in body if each[0] in " -"]
    new = [each[1:] for each in body if each[0] in " +"]
    assert (len(old), len(new)) == (num_old, num_new)
    first = start - 1 if num_old else start
    assert list(lines[first : first + num_old]) == old, "the hunk is not for this text"
    return [*lines[:first], *new, *lines[first + num_old :]]


@settings(max_examples=examples(1))
@given(first=LINES, steps=st.lists(st.tuples(st.integers(0, 20), LINES), max_size=8))
def test_the_edits_in_their_order_make_the_document(first: list[str], steps: list[tuple[int, list[str]]]) -> None:
    edits, at_ms = RecentEdits(ALL), 0
    edits.update("a", "".join(first), at_ms)
    lines = first
    for after_ms, text in steps:
        at_ms += after_ms
        edits.update("a", "".join(text), at_ms)
        lines = text
    made = first
    for each in edits.choose():
        made = patched(made, each.diff)
    assert made == lines


@settings(max_examples=examples(1))
@given(lines=LINES, data=st.data(), new=LINES)
def test_a_least_edit_does_the_same(lines: list[str], data: st.DataObject, new: list[str]) -> None:
    first = data.draw(st.integers(0, len(lines)))
    end = data.draw(st.integers(first, len(lines)))
    expected = [*lines[:first], *new, *lines[end:]]
    least = fitted(lines, LineEdit(first, end - first, "".join(new)))
    if least is None:
        assert expected == lines
        return
    assert least.num_lines <= end - first
    assert lines[: least.first] + lines_of(least.text) + lines[least.first + least.num_lines :] == expected
