import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_server.prompt.snippets import short_path


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///home/ann/app%20one/main.py", "ann/app one/main.py"),
        ("untitled:Untitled-1", "Untitled-1"),
        ("vscode-remote://ssh-remote+[host]/home/ann/main.py", "home/ann/main.py"),
        ("http://[x]/", "http:/[x]"),
        ("//[", "["),
        ("http://a\u2100b/c", "http:/a\u2100b/c"),
        ("", ""),
    ],
)
def test_the_last_parts_of_any_uri(uri: str, path: str) -> None:
    assert short_path(uri) == path


@given(st.text() | st.from_regex(r"(http|file|x-y)://[\[\]:%a-f0-9\u2100]*/?.*"))
def test_any_text_gives_one_line(uri: str) -> None:
    assert len(short_path(uri).splitlines()) <= 1
