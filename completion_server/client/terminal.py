"""Shows a completion on a terminal or writes it to a pipe."""

import re

from rich.console import Console
from rich.text import Text

from completion_client import Completion
from completion_server.client.cursor import Cursor

# A model may write escape sequences, which must not control the user's terminal.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

_NO_TEXT = {
    "stop": "the model has nothing to add here",
    "length": "the model wrote nothing that can be shown",
    "superseded": "a newer request of the same user superseded it",
    "shed": "the server did not attempt it",
    "cancelled": "it was cancelled",
}


class CompletionView:
    """Shows one completion while it arrives: within its line on a terminal, alone in a pipe."""

    def __init__(self, console: Console, cursor: Cursor, *, is_silent: bool = False) -> None:
        """Show nothing yet. A silent view never shows anything."""
        self._console = console
        self._cursor = cursor
        self._is_silent = is_silent
        self._is_terminal = console.is_terminal and not is_silent

    def begin(self) -> None:
        """Show the cursor's line up to the cursor."""
        if self._is_terminal:
            self._console.out(printable(self._cursor.left), style="dim", highlight=False, end="")

    def add(self, text: str) -> None:
        """Show a piece of the completion."""
        if self._is_terminal:
            self._console.out(printable(text), style="bold green", highlight=False, end="")
        elif not self._is_silent:
            self._console.file.write(text)
            self._console.file.flush()

    def finish(self) -> None:
        """Show the text right of the cursor and end the line."""
        if self._is_terminal:
            self._console.out(printable(self._cursor.right), style="dim", highlight=False)


def printable(text: str) -> str:
    """Return the text with control characters other than tab and newline made visible."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def footer(completion: Completion) -> Text:
    """Return one line with the times and tokens of a completion, "" if it has no End."""
    if completion.end is None:
        return Text()
    usage = completion.end.usage
    parts = [
        f"TTFT {completion.ttft_ms:.1f} ms" if completion.ttft_ms is not None else "no text",
        f"{completion.tokens_per_s:.0f} tokens/s" if completion.tokens_per_s is not None else "",
        f"{completion.total_ms:.1f} ms in all",
        completion.finish_reason or "",
        f"from the {completion.cache_level} cache" if completion.cache_level else "",
        f"{usage.completion_tokens} tokens",
        f"prompt {usage.prompt_tokens} ({usage.cached_prompt_tokens} cached)",
        f"draft {usage.drafted_tokens} ({usage.accepted_draft_tokens} accepted)"
        if usage.drafted_tokens
        else "no draft",
    ]
    line = Text(" · ".join(part for part in parts if part), style="dim")
    return line if completion.text else line.append(f"\n{why_empty(completion)}")


def why_empty(completion: Completion) -> str:
    """Return a sentence for a completion without text."""
    if completion.end is None:
        return ""
    reason = completion.finish_reason or ""
    why = f"No completion: {_NO_TEXT.get(reason, reason)}"
    if completion.shed_reason:
        why += f" ({completion.shed_reason.replace('_', ' ')})"
    if completion.limit:
        why += f"; the limit is {completion.limit.name} = {completion.limit.allowed:.15g}"
    if completion.end.HasField("retry_after_ms"):
        why += f"; ask again in {completion.end.retry_after_ms} ms"
    return why + "."
