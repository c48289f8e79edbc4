import io

from rich.console import Console

from completion.v1 import completion_pb2 as pb
from completion_client import Completion
from completion_server.client.cursor import Position, split_text
from completion_server.client.terminal import CompletionView, footer

CURSOR = split_text("x = [1, ]\n", Position("f", 1, 9))


def show(*, is_terminal: bool, is_silent: bool = False, pieces: tuple[str, ...] = ("2, ", "3")) -> str:
    output = io.StringIO()
    console = Console(file=output, force_terminal=is_terminal, color_system="standard", highlight=False)
    view = CompletionView(console, CURSOR, is_silent=is_silent)
    view.begin()
    for piece in pieces:
        view.add(piece)
    view.finish()
    return output.getvalue()


def test_a_terminal_shows_the_line_dimmed_and_the_completion_highlighted() -> None:
    assert show(is_terminal=True) == ("\x1b[2mx = [1, \x1b[0m\x1b[1;32m2, \x1b[0m\x1b[1;32m3\x1b[0m\x1b[2m]\x1b[0m\n")


def test_a_pipe_gets_the_completion_alone() -> None:
    assert show(is_terminal=False) == "2, 3"


def test_a_silent_view_shows_nothing() -> None:
    assert show(is_terminal=True, is_silent=True) == ""


def test_a_completion_can_not_drive_the_terminal() -> None:
    shown = show(is_terminal=True, pieces=("a\x1b]0;title\x07b\r",))
    assert "a\N{REPLACEMENT CHARACTER}]0;title\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}" in shown


def test_the_footer_omits_unknown_values() -> None:
    answer = Completion("", pb.End(finish_reason=pb.FINISH_REASON_STOP), None, (), 5.0)
    text = footer(answer).plain
    assert text.startswith("no text · 5.0 ms in all · stop")
    assert "tokens/s" not in text
    assert text.endswith("No completion: the model has nothing to add here.")
