"""The scripted model of next edits."""

from collections.abc import Sequence

import pytest

from completion_server.engine.interface import GenerationRequest
from completion_server.engine.scripted.edit_model import answer_to, edit_script

WINDOW = "def f(width):\n    return width * width_of(x)"


def prompt(window: str, *changes: tuple[str, str]) -> str:
    diffs = "".join(f"<|file_sep|>a.py.diff\noriginal:\n{old}\nupdated:\n{new}\n" for old, new in changes)
    return f"{diffs}<|file_sep|>original/a.py\nold\n<|file_sep|>current/a.py\n{window}\n<|file_sep|>updated/a.py"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ((), WINDOW),
        ((("f(width)", "f(wide)"),), "def f(wide):\n    return wide * width_of(x)"),
        ((("a = 1", "b = 1"), ("f(width)", "f(wide)")), "def f(wide):\n    return wide * width_of(x)"),
        ((("f(width)", "f(w)"), ("a = 1", "b = 1")), WINDOW),
        ((("f()", "f(width)"),), WINDOW),
        ((("x = (1)\ny", "x = (2)\ny"),), WINDOW),
    ],
)
def test_the_last_change_of_a_word_is_made_everywhere(changes: Sequence[tuple[str, str]], expected: str) -> None:
    assert answer_to(prompt(WINDOW, *changes)) == f"\n{expected}"


@pytest.mark.parametrize(
    "other", ["", "def f(", "<|file_sep|>a.py\nx", "<|file_sep|>updated/a.py", "a<|file_sep|>b<|file_sep|>c"]
)
def test_another_prompt_has_another_answer(other: str) -> None:
    assert answer_to(other) is None


def test_the_script_reads_tokens_and_writes_pieces() -> None:
    text = prompt(WINDOW, ("f(width)", "f(wide)"))
    script = edit_script(lambda ids: "".join(map(chr, ids)), otherwise=lambda _request: ["no edit"])
    pieces = list(script(GenerationRequest("r", [ord(each) for each in text], 64)))
    assert "".join(map(str, pieces)) == "\ndef f(wide):\n    return wide * width_of(x)"
    assert len(pieces) > 5
    assert list(script(GenerationRequest("r", [ord("x")], 64))) == ["no edit"]
