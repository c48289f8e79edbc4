"""Unified diffs: their hunks and their faults."""

import pytest

from completion_server.core.diffs import Hunk, check_hunks, parse_hunks
from tests.support.next_edits import diff_of


def test_hunks_have_both_sides() -> None:
    old, new = "".join(f"{at}\n" for at in range(20)), "".join(f"{at}\n" for at in range(20) if at not in {3, 17})
    first, second = parse_hunks(diff_of(old, new.replace("18", "x")))
    assert first == Hunk(("0", "1", "2", "3", "4", "5", "6"), ("0", "1", "2", "4", "5", "6"))
    assert second == Hunk(("14", "15", "16", "17", "18", "19"), ("14", "15", "16", "x", "19"))


@pytest.mark.parametrize(
    ("diff", "hunk"),
    [
        ("@@ -1 +1 @@\n-a\n+b\n", Hunk(("a",), ("b",))),
        ("@@ -1 +1 @@\n-a\n+b", Hunk(("a",), ("b",))),
        ("@@ -1,2 +1 @@ def f():\r\n-a\r\n+b\r\n \r\n", Hunk(("a", ""), ("b", ""))),
        ("@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+b\n", Hunk(("a",), ("b",))),
        ("@@ -0,0 +1,2 @@\n+@@ -1 +1 @@\n+--- a\n", Hunk((), ("@@ -1 +1 @@", "--- a"))),
        ("@@ -1,2 +1,2 @@\n\n-a\n+b\n", Hunk(("", "a"), ("", "b"))),
        ("@@ -1 +0,0 @@\n-é\n", Hunk(("é",), ())),
    ],
)
def test_a_hunk_is_read_in_any_form(diff: str, hunk: Hunk) -> None:
    check_hunks(diff)
    assert parse_hunks(diff) == (hunk,)


@pytest.mark.parametrize(
    ("diff", "expected"),
    [
        ("", 'line 1 must be "@@ -1,2 \\+1,2 @@"'),
        ("--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+b\n", "line 1 must be"),
        ("@@ -1 +1 @@\n-a\nb\n", 'line 3 must be one that begins with " ", "-", "\\+" or "@@"'),
        ("@@ -1 +1 @@\n" + "+a\n" * 4000, "there may be 4000 lines, and are 4001"),
        ("@@ -x +1 @@\n-a\n", "line 1 must be"),
    ],
)
def test_other_text_is_no_hunk(diff: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        check_hunks(diff)
