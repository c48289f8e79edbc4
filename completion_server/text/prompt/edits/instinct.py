"""Instinct of Continue, which is fine-tuned from Qwen2.5-Coder as a chat model.

After the repository that it was trained with: a chat of one turn with sections for context, recent edits (the last one
first) and an excerpt of the file. The model writes the region between the markers anew. The published instructions are
not a part of this server: `prompt.next_edit_instructions` takes them.
"""

from typing import ClassVar

from completion_server.text.prompt.edits.region import Reach, Region
from completion_server.text.prompt.edits.template import EditTemplate, Marker, Part, View, without_last_break

_CURSOR = "<|user_cursor_is_here|>"
_START, _END = "<|editable_region_start|>", "<|editable_region_end|>"
_BEGIN, _STOP = Marker("<|im_start|>"), Marker("<|im_end|>")
_INSTRUCTIONS = f"""\
You predict the next edit of a programmer. The user's message has context from other files, the last changes, the
newest first, and an excerpt of the current file. Answer with the new text of the lines between {_START} and
{_END}, without the markers. {_CURSOR} is the cursor. Continue what the last changes began; do not undo them."""


class Instinct(EditTemplate):
    """Instinct."""

    name: ClassVar[str] = "instinct"
    hints: ClassVar[tuple[str, ...]] = ("instinct",)
    markers: ClassVar[tuple[str, ...]] = ("<|im_start|>", "<|im_end|>")
    ends: ClassVar[tuple[str, ...]] = ("<|endoftext|>",)
    words: ClassVar[tuple[str, ...]] = (_START, _END, _CURSOR, "<|context_file|>", "<|snippet|>")
    stops: ClassVar[tuple[str, ...]] = (_END, "<|im_end|>", "<|endoftext|>")
    reach: ClassVar[Reach] = Reach(1, 5)
    shown: ClassVar[Reach] = Reach(24, 20)
    max_edits: ClassVar[int] = 5

    def __init__(self, instructions: str = "") -> None:
        """Replace the first message of the chat by `instructions`, if there are any."""
        self._instructions = instructions or _INSTRUCTIONS

    def render(self, view: View) -> list[Part]:
        """Return the chat up to the beginning of the answer."""
        context = "\n".join(f"<|context_file|> {each.path}\n<|snippet|>\n{each.text}" for each in view.snippets)
        edits = "".join(
            f'User edited file "{each.path}"\n\n```diff\n{each.diff}```\n\n' for each in reversed(view.edits)
        )
        excerpt = f"{view.above}{_START}\n{view.marked(_CURSOR)}\n{_END}\n{view.below}"
        user = f'### Context:\n\n{context}\n\n\n### User Edits:\n\n{edits}### User Excerpt:\n"{view.path}"\n\n{excerpt}'
        return [
            *(_BEGIN, f"system\n{self._instructions}", _STOP, "\n"),
            *(_BEGIN, f"user\n{user}", _STOP, "\n"),
            *(_BEGIN, "assistant\n"),
        ]

    def read(self, answer: str, region: Region, *, is_stopped: bool) -> str | None:
        """Return the region's new text; a model that repeats the first marker is understood, too."""
        text = answer.removeprefix(f"{_START}\n").replace(_CURSOR, "", 1)
        return without_last_break(text, region, is_stopped=is_stopped)
